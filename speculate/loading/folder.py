"""Where a checkpoint lies, and what is wrong with it, told before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from speculate.errors import CheckpointError, SpeculateError, UnsupportedModelError
from speculate.validation import refuse

REPOSITORY: Final = re.compile(r"[\w][\w.-]*/[\w.-]+")
"""What a hub repository's name looks like."""

REASON_LIMIT: Final = 300
"""Most characters that are quoted of another library's error."""


def locate(
    path_or_repo: str | Path, revision: str | None = None, *, head_only: bool = False
) -> Path:
    """A path that exists: the given one, or that of a downloaded hub repository.

    Args:
        path_or_repo: A path, or a repository as `owner/name`.
        revision: A branch, a tag or a commit of it.
        head_only: Download what holds the head, and no more of the trunk than that takes.

    Raises:
        OptionError: They are no names.
        CheckpointError: There is neither.
    """
    if not isinstance(path_or_repo, str | Path):
        refuse("path_or_repo", "a path or a hub repository", path_or_repo)
    path = Path(path_or_repo).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if isinstance(path_or_repo, Path) or not REPOSITORY.fullmatch(path_or_repo):
        raise CheckpointError(
            f"{path}: there is no such folder. Give a model's folder, or a hub repository as "
            "owner/name"
        )
    from speculate.checkpoints.hub import download, download_head

    return (download_head if head_only else download)(path_or_repo, revision)


def check_folder(folder: Path, overrides: Mapping[str, object] | None) -> None:
    """Refuse a folder that mlx-lm could not load, and say why.

    Reads `config.json` and the headers of weights, and nothing else.

    Args:
        folder: Where the model lies.
        overrides: Entries that replace those of `config.json`.

    Raises:
        CheckpointError: It is no folder, or something is missing in it or broken.
        UnsupportedModelError: mlx-lm has no such model.
    """
    from speculate.checkpoints.folder import check_layers, read_json

    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file. Give the folder that holds config.json")
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder}: has no config.json. Give the folder of a model, as downloaded from a "
            "hub or written by mlx_lm.convert"
        )
    config = {**read_json(folder / "config.json"), **(overrides or {})}
    check_layers(config, folder)
    _check_type(folder, config)
    if not any(folder.glob("model*.safetensors")):
        raise CheckpointError(
            f"{folder}: has no weights, which mlx-lm expects in model*.safetensors. Download "
            "the folder whole, or convert what is there with mlx_lm.convert"
        )
    _check_files(folder)


@contextmanager
def explained(folder: Path, what: str) -> Iterator[None]:
    """Turn whatever another library raises over a folder into an error that names it.

    Raises:
        CheckpointError: The body raised something that is no error of this package.
    """
    try:
        yield
    except SpeculateError:
        raise
    except Exception as error:
        raise CheckpointError(f"{folder}: {what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """An error in a line: its kind and its text, cut where that is long."""
    text = " ".join(str(error).split())
    if len(text) > REASON_LIMIT:
        text = text[:REASON_LIMIT] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_files(folder: Path) -> None:
    """What others are about to open: a pipe would keep them waiting, a header may lie to them."""
    from speculate.checkpoints.header import read_header

    for path in sorted(folder.iterdir()):
        if path.match("model*.safetensors"):
            read_header(path)
        elif path.exists() and not (path.is_file() or path.is_dir()):
            raise CheckpointError(f"{path}: is not a regular file")


def _check_type(folder: Path, config: Mapping[str, object]) -> None:
    from mlx_lm.utils import _get_classes

    from speculate.models.registry import factory_for, supported

    name = config.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(f"{folder}/config.json: names no model_type, so it is no model's")
    if config.get("model_file") is not None:
        return  # The folder brings code of its own.
    try:
        model_class, _ = _get_classes(dict(config))
    except (ValueError, AttributeError) as error:
        if name.endswith("_mtp"):
            remedy = "It is a head alone: load its trunk, and pass this as head="
        else:
            remedy = f"Supported: {', '.join(supported())}"
        raise UnsupportedModelError(
            f"{folder}: mlx-lm has no model type {name!r}. {remedy}"
        ) from error
    # Asked before the model is made: how much a config may ask of others is not known.
    factory_for(model_class)
