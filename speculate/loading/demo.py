"""The models and the prompt that come with the package: small, and really trained."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from speculate.errors import CheckpointError, OptionError

DEMO_MODELS: Final = ("hybrid", "draft", "windowed")
"""A Qwen3.5 with a head, a smaller dense model for it, and a gpt-oss with a short window."""

DATA: Final = "data"
PROMPTS: Final = "prompts"


def demo_folder(name: str) -> Path:
    """Where a bundled model lies.

    Raises:
        OptionError: There is none of that name.
        CheckpointError: This installation came without it.
    """
    if name not in DEMO_MODELS:
        raise OptionError(f"no bundled model is called {name!r}; there are {_listed()}")
    folder = _data() / name
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: the bundled model is missing; reinstall mlx-speculate")
    return folder


def demo_prompt() -> str:
    """The beginning of a source file that no bundled model has seen.

    Raises:
        CheckpointError: This installation came without it.
    """
    folder = _data() / PROMPTS
    found = sorted(folder.glob("code_*.txt"))
    if not found:
        raise CheckpointError(f"{folder}: the bundled prompts are missing; reinstall mlx-speculate")
    return found[0].read_text(encoding="utf-8")


def _data() -> Path:
    found = files("speculate") / DATA
    return found if isinstance(found, Path) else _unpacked()


@cache
def _unpacked() -> Path:
    """The data of a package that is imported from an archive, unpacked while the process runs."""
    folder = Path(tempfile.mkdtemp(prefix="speculate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _copy(files("speculate") / DATA, folder / DATA)
    return folder / DATA


def _copy(source: Traversable, target: Path) -> None:
    if source.is_dir():
        target.mkdir()
        for member in source.iterdir():
            _copy(member, target / member.name)
    elif source.is_file():
        target.write_bytes(source.read_bytes())


def _listed() -> str:
    return ", ".join(DEMO_MODELS)
