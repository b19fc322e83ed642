"""Folders that appear whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from speculate.errors import CheckpointError


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder to fill, which becomes `target` when the body has ended well.

    Until then it lies in a hidden one beside `target`, which stays as it was. A process
    that is killed leaves that hidden folder behind, and nothing else.

    Args:
        target: What it will be called.
        replace: Take the place of a model's folder that is there already.

    Raises:
        CheckpointError: There is something at `target` that is not to be replaced, or the
            folder cannot be made.
    """
    check_free(target, replace=replace)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be made: {error.strerror}") from error
    try:
        # One deeper: the hidden folder itself is closed to other users.
        made = hidden / "new"
        made.mkdir()
        yield made
        _put(made, target, hidden / "old", replace)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_free(target: Path, *, replace: bool = False) -> None:
    """Refuse a name that is taken.

    Args:
        target: The name.
        replace: Whether a model's folder may lose it.

    Raises:
        CheckpointError: Something is there that is not to be replaced.
    """
    if not os.path.lexists(target):
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not replace:
        raise CheckpointError(f"{target}: exists. Name another folder, or replace it with --force")
    if not (target / "config.json").is_file():
        raise CheckpointError(f"{target}: is no model's folder, so it is not replaced")


def check_apart(target: Path, source: Path) -> None:
    """Refuse to replace what is read from.

    Raises:
        CheckpointError: `target` is `source`, or holds it.
    """
    # Path.resolve raises where links go round in a circle; this does not.
    place = Path(os.path.realpath(source))
    if Path(os.path.realpath(target)) in (place, *place.parents):
        raise CheckpointError(f"{target}: is where the source lies. Name another folder")


def _put(made: Path, target: Path, old: Path, replace: bool) -> None:
    try:
        if replace and target.exists():
            target.rename(old)
        made.rename(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise CheckpointError(f"{target}: cannot be put there: {error.strerror}") from error
