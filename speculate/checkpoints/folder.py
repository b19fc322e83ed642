"""A checkpoint's folder: its index, its tensors' headers and its configs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final, cast

import attrs

from speculate.checkpoints.safetensors import (
    NAME_LIMIT,
    TensorEntry,
    file_size,
    parse_json,
    read_header,
)
from speculate.errors import CheckpointError, SpeculateError, SpeculateWarning

JSON_LIMIT: Final = 64 * 2**20
"""Longest index or config that is read, in bytes."""

FILE_LIMIT: Final = 10_000
"""Most files that an index may list."""

INDEX_SUFFIX: Final = ".safetensors.index.json"
"""End of the name of an index file."""

SHOWN: Final = 3
REASON_LIMIT: Final = 300
"""Most repeated keys that a warning quotes, and most characters of another library's error."""


@attrs.frozen
class FolderScan:
    """The contents of a checkpoint's folder, without the tensors' data.

    Attributes:
        tensors: Tensors by name. If two files hold a name, the one that the index lists.
        files: Every file whose header was read.
        listed: The index: tensor -> file. A file may be absent.
        clashes: Names that two files hold, of which the index lists neither: name -> files.
        config: `config.json`; empty if there is none.
    """

    folder: Path
    tensors: Mapping[str, TensorEntry]
    files: tuple[Path, ...]
    listed: Mapping[str, Path]
    clashes: Mapping[str, tuple[Path, Path]]
    config: Mapping[str, object]


def scan_folder(path: Path) -> FolderScan:
    """Read the headers of a folder's safetensors files, or of one file. Refuses damaged ones."""
    places: dict[str, Path] = {}
    if os.path.isdir(path):
        folder, places = path, listed(path)
        # Unlike `Path.exists`, `os.path.exists` never raises, however long an untrusted name is.
        present = {file for file in set(places.values()) if os.path.exists(file)}
        files = sorted(present.union(visible_files(path, ".safetensors")))
    elif os.path.exists(path) and path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: is not a .safetensors file, and no other format is opened")
    else:
        folder, files = path.parent, [path]
    tensors: dict[str, TensorEntry] = {}
    clashes: dict[str, tuple[Path, Path]] = {}
    for file in files:
        for tensor in read_header(file):
            other, place = tensors.get(tensor.name), places.get(tensor.name)
            if other is None or place == file:
                tensors[tensor.name] = tensor
            if other is not None and place not in (file, other.path):
                clashes[tensor.name] = (other.path, file)
    config = folder / "config.json"
    known = read_json(config) if config.exists() else {}
    return FolderScan(folder, tensors, tuple(files), places, clashes, known)


def listed(folder: Path) -> dict[str, Path]:
    """Return the index of a folder: tensor -> file. Empty if there is no index.

    Refuses an index that is broken, or points out of the folder.
    """
    found: dict[str, Path] = {}
    for index in visible_files(folder, INDEX_SUFFIX):
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict):
            raise CheckpointError(f"{index}: has no 'weight_map' of names to files")
        files = set(map(str, names.values()))
        if len(files) > FILE_LIMIT:
            raise CheckpointError(f"{index}: lists {len(files)} files, over {FILE_LIMIT}")
        places = {name: _inside(folder, index, name) for name in files}
        found.update((tensor, places[str(name)]) for tensor, name in names.items())
    return found


def visible_files(folder: Path, suffix: str) -> list[Path]:
    """Return files by suffix, without hidden ones, which a file manager may have made."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from error
    return [p for p in paths if p.name.endswith(suffix) and not p.name.startswith(".")]


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object of up to `JSON_LIMIT` bytes. Of a repeated key, the last value counts."""
    if file_size(path) > JSON_LIMIT:
        raise CheckpointError(f"{path}: is longer than {JSON_LIMIT} bytes")
    twice: list[str] = []
    found = parse_json(path, path.read_bytes(), twice.extend)
    if twice:
        names = ", ".join(repr(name[:NAME_LIMIT]) for name in twice[:SHOWN])
        more = f" and {len(twice) - SHOWN} more" if twice[SHOWN:] else ""
        text = f"{path}: repeats {names}{more}; the last value counts, as in mlx-lm"
        # Attributed to this line, so that a file read from several places is reported once.
        warnings.warn(text, SpeculateWarning, stacklevel=1)
    return found


def setting(config: Mapping[str, object], key: str) -> object:
    """Return a value of a config: the text model's own, or else the top level's."""
    text = section(config, "text_config")
    return text[key] if key in text else config.get(key)


def section(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return an object inside a config; empty if there is none."""
    found = config.get(key)
    return cast(Mapping[str, object], found) if isinstance(found, dict) else {}


def check_layers(config: Mapping[str, object], folder: Path) -> None:
    """Refuse an absurd number of layers: a model without weights allocates memory for each."""
    for level in (config, section(config, "text_config")):
        for key, value in level.items():
            if "layer" in key and isinstance(value, int) and value > 1024:
                raise CheckpointError(f"{folder}/config.json: {key} is {value}, which cannot be")


def _inside(folder: Path, index: Path, name: str) -> Path:
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    leaves = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
    if leaves or "\0" in name:
        raise CheckpointError(f"{index}: lists {name!r}, which is outside its folder")
    if posix.suffix != ".safetensors":
        raise CheckpointError(f"{index}: lists {name!r}, which is not a safetensors file")
    return folder / name


@contextmanager
def wrap_errors(folder: Path, what: str) -> Iterator[None]:
    """Turn another library's error into a `CheckpointError` that names the folder and `what`."""
    try:
        yield
    except SpeculateError:
        raise
    except Exception as error:
        raise CheckpointError(f"{folder}: {what}: {summarize_error(error)}") from error


def summarize_error(error: BaseException) -> str:
    """Return an error in one line: its class and its message, truncated to `REASON_LIMIT`."""
    text = " ".join(str(error).split())
    if len(text) > REASON_LIMIT:
        text = text[:REASON_LIMIT] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_files(folder: Path) -> None:
    """Refuse a folder with files that mlx-lm could not open: pipes, and broken weights."""
    for path in sorted(folder.iterdir()):
        if path.match("model*.safetensors"):
            read_header(path)
        elif path.exists() and not (path.is_file() or path.is_dir()):
            raise CheckpointError(f"{path}: is not a regular file")
