"""Reading a few tensors of a large file, and not a byte of the others."""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Final, cast, final

import mlx.core as mx
from typing_extensions import Buffer, override

from speculate.checkpoints.header import Header, TensorEntry, read_header
from speculate.errors import CheckpointError

LOADABLE: Final = frozenset(
    {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
    | {"F16", "BF16", "F32", "F8_E4M3", "F8_E8M0"}
)
"""What mlx can load. It gives 8-bit floats as `uint8`."""


def read_tensors(entries: Mapping[str, TensorEntry]) -> dict[str, mx.array]:
    """Read tensors into memory.

    Args:
        entries: What to read, by the name that it is returned under.

    Raises:
        CheckpointError: A file changed since its header was read, or holds a kind of
            number that mlx does not have.
    """
    _check_memory(entries)
    by_file: dict[Path, list[TensorEntry]] = defaultdict(list)
    for entry in entries.values():
        if entry.dtype not in LOADABLE:
            raise CheckpointError(
                f"{entry.path}: tensor {entry.name!r} is {entry.dtype}, which mlx cannot read"
            )
        by_file[entry.path].append(entry)
    found = {path: _read_file(path, wanted) for path, wanted in by_file.items()}
    return {name: found[entry.path][entry.name] for name, entry in entries.items()}


def _check_memory(entries: Mapping[str, TensorEntry]) -> None:
    """A sparse file may truly be as long as it claims: do not begin what cannot end well."""
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return
    size = sum(entry.end - entry.begin for entry in entries.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        path = next(iter(entries.values())).path
        raise CheckpointError(
            f"{path}: the head takes {size} bytes, and this machine has {memory} bytes of memory"
        )


def _read_file(path: Path, wanted: Iterable[TensorEntry]) -> dict[str, mx.array]:
    header = read_header(path)
    if not set(wanted) <= set(header.tensors):
        raise CheckpointError(f"{path}: changed while it was read")
    try:
        with path.open("rb") as file:
            view = cast(BinaryIO, _View(file, header, wanted))
            arrays = cast(dict[str, mx.array], mx.load(view, format="safetensors"))
            mx.eval(arrays)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return arrays


@final
class _View(io.RawIOBase):
    """A safetensors file whose header names some of its tensors only.

    mlx reads lazily, but it insists on understanding every tensor of a header, so a trunk
    with one foreign dtype would hide the head. The header that it sees here is our own,
    padded to the length of the file's, so that all offsets stay true.
    """

    def __init__(
        self, file: io.BufferedReader, header: Header, wanted: Iterable[TensorEntry]
    ) -> None:
        super().__init__()
        described = {
            t.name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": [t.begin, t.end]}
            for t in wanted
        }
        text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
        self._file = file
        self._front = header.length.to_bytes(8, "little") + text.ljust(header.length)
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET:
            self._position = offset
        elif whence == io.SEEK_CUR:
            self._position += offset
        else:
            self._position = self._file.seek(offset, whence)
        return self._position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if self._position < len(self._front):
            part = self._front[self._position : self._position + len(target)]
            target[: len(part)] = part
            count = len(part)
        else:
            self._file.seek(self._position)
            count = self._file.readinto(target)
        self._position += count
        return count
