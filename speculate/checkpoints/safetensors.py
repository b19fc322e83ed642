"""Safetensors files, whose headers are untrusted and therefore read and checked by hand."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Final, cast

import attrs
import mlx.core as mx

from speculate.errors import CheckpointError

HEADER_LIMIT: Final = 8 * 2**20
"""Longest header that is read, in bytes: over 50,000 tensors in one file."""

JSON_PARTS_LIMIT: Final = 2**20
"""Most keys, lists and objects in a JSON file; 262,144 tokens with their merges are 0.9 million."""

NAME_LIMIT: Final = 200
"""Most characters of a name that are quoted."""

_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}

SUPPORTED: Final = (
    "Supported are plain floats (F16, BF16, F32); mlx's affine, mxfp4, mxfp8 and nvfp4, which are "
    "32-bit words with .scales; and 8-bit floats (F8_E4M3) with factors in weight_scale_inv or "
    "weight_scale: one for the matrix, each row, each group of a row's columns, or each block"
)
"""Supported packings, for errors."""

LOADABLE: Final = _BITS.keys() - {"F4", "F6_E2M3", "F6_E3M2", "F8_E5M2", "F64", "C64"}
"""Dtypes that mlx can load. It returns 8-bit floats as `uint8`."""


@attrs.frozen
class TensorEntry:
    """A tensor in a file, by the file's header.

    `name`, `dtype` (`BF16`, `U32`, ...) and `shape` are those on disk. It takes the bytes from
    `begin` up to `end`, counted from the end of the header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    path: Path

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return self.end - self.begin


Entries = Mapping[str, TensorEntry]
"""Tensors by name."""


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """Read a file's header: an entry for each tensor, in the order of their offsets.

    Refuses what is no safetensors file, and a header that does not fit the file's size.
    """
    size = file_size(path)
    try:
        with path.open("rb") as file:
            length = _header_length(path, size, file.read(8))
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    found = parse_json(path, raw, _refuse_repeated)
    found.pop("__metadata__", None)
    tensors = [_entry(path, name, value) for name, value in found.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_layout(path, tensors, size - 8 - length)
    return tuple(tensors)


def file_size(path: Path) -> int:
    """Return a file's size in bytes. Refuses what is no regular file: a loop of links, a device."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: is not a regular file")
    return found.st_size


def parse_json(
    path: Path, raw: bytes, repeated: Callable[[Sequence[str]], None]
) -> dict[str, object]:
    """Parse a JSON object in UTF-8, of at most `JSON_PARTS_LIMIT` parts. Refuses anything else.

    `repeated` is called with the repeated keys of each object, whose last values count, and may
    raise `ValueError` to refuse them.
    """

    def make(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated([key for key, count in counts.items() if count > 1])
        return found

    # Counted first: parsed, each part takes up to a hundred times its bytes.
    if sum(map(raw.count, (b":", b"[", b"{"))) > JSON_PARTS_LIMIT:
        raise CheckpointError(f"{path}: has more than {JSON_PARTS_LIMIT} keys, lists and objects")
    try:
        found: object = json.loads(raw.decode("utf-8"), object_pairs_hook=make)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds {type(found).__name__}, not a JSON object")
    return found


def _refuse_repeated(keys: Sequence[str]) -> None:
    raise ValueError(f"key {keys[0][:NAME_LIMIT]!r} appears twice")


def _header_length(path: Path, size: int, prefix: bytes) -> int:
    length = int.from_bytes(prefix, "little")
    if size < 8:
        problem = f"is not a safetensors file: it has {size} bytes"
    elif length > HEADER_LIMIT:
        problem = (
            f"is not a safetensors file, or a damaged one: it claims a header of {length} bytes, "
            f"and at most {HEADER_LIMIT} are read"
        )
    elif length > size - 8:
        problem = f"is cut short: it claims a header of {length} bytes and has {size} in all"
    else:
        return length
    raise CheckpointError(f"{path}: {problem}")


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    found = value if isinstance(value, dict) else {}
    dtype, shape, span = found.get("dtype"), _sizes(found, "shape"), _sizes(found, "data_offsets")
    if not isinstance(dtype, str) or shape is None or span is None or len(span) != 2:
        raise CheckpointError(f"{path}: tensor {name!r} is not described as safetensors requires")
    if len(shape) > 16 or any(side > 2**48 for side in shape):
        raise CheckpointError(f"{path}: tensor {name!r} has an impossible shape")
    return TensorEntry(name, dtype, shape, span[0], span[1], path)


def _sizes(described: Mapping[str, object], key: str) -> tuple[int, ...] | None:
    value = described.get(key)
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def _check_layout(path: Path, tensors: Sequence[TensorEntry], size: int) -> None:
    """Check that tensors cover every byte exactly once, as the format requires."""
    position = 0
    for tensor in tensors:
        if tensor.begin != position or tensor.end < tensor.begin:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} claims bytes {tensor.begin} to {tensor.end}, "
                f"which overlap others or leave a hole at {position}"
            )
        bits = _BITS.get(tensor.dtype)
        if bits is not None and prod(tensor.shape) * bits != tensor.size * 8:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape}, and "
                f"claims {tensor.size} bytes"
            )
        position = tensor.end
    if position != size:
        raise CheckpointError(
            f"{path}: is cut short or damaged: its tensors take {position} bytes, {size} are there"
        )


def open_tensors(entries: Entries) -> dict[str, mx.array]:
    """Return lazy tensors: shapes and dtypes are known, data is read when it is first used.

    Refuses a file that changed since its header was read, and a dtype that mlx lacks.
    """
    by_file: dict[Path, set[TensorEntry]] = defaultdict(set)
    for entry in entries.values():
        if entry.dtype not in LOADABLE:
            raise CheckpointError(
                f"{entry.path}: tensor {entry.name!r} is {entry.dtype} {entry.shape}, which mlx "
                f"cannot read. {SUPPORTED}"
            )
        by_file[entry.path].add(entry)
    found: dict[Path, dict[str, mx.array]] = {}
    for path, wanted in by_file.items():
        if not wanted <= set(read_header(path)):
            raise CheckpointError(f"{path}: changed while it was read")
        with naming(path):
            # Reads only the header.
            found[path] = cast(dict[str, mx.array], mx.load(str(path), format="safetensors"))
    return {name: found[entry.path][entry.name] for name, entry in entries.items()}


def check_memory(entries: Entries) -> None:
    """Refuse tensors larger than the memory: a sparse file can be as long as it claims."""
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return
    size = sum(entry.size for entry in entries.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        path = next(iter(entries.values())).path
        raise CheckpointError(
            f"{path}: the head takes {size} bytes, and this machine has {memory} bytes of memory"
        )


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Turn errors of reading tensors into a `CheckpointError` that names the file or folder."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{place}: cannot be read: {error}") from error
