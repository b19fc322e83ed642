"""The header of a safetensors file, read by hand: it may come from a stranger, and lie."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Final, cast

import attrs
import mlx.core as mx

from speculate.errors import CheckpointError

HEADER_LIMIT: Final = 8 * 2**20
"""Longest header that is read, in bytes: over 50,000 tensors in one file."""

RANK_LIMIT: Final = 16
DIMENSION_LIMIT: Final = 2**48
JSON_PARTS_LIMIT: Final = 2**20
"""Most keys, lists and objects in a JSON text; 262,144 tokens with their merges are 0.9 million."""

NAME_LIMIT: Final = 200
"""Most characters that are quoted of a name."""

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
"""What a packing may be, for errors."""


@attrs.frozen
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        name: As on disk.
        dtype: As on disk: `BF16`, `U32`, ...
        shape: Its dimensions.
        begin: First byte, counted from the end of the header.
        end: The byte after its last.
        path: The file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    path: Path


@attrs.frozen
class Header:
    """What a file says of itself, checked against the size that it really has.

    Attributes:
        path: The file.
        length: Bytes of the header itself, without the eight that tell this length.
        tensors: In the order of their bytes.
    """

    path: Path
    length: int
    tensors: tuple[TensorEntry, ...]


def read_header(path: Path) -> Header:
    """Read a file's header, and none of its tensors.

    Raises:
        CheckpointError: The file is not a safetensors file, or its header does not fit
            the bytes that are there. Names the file and the reason.
    """
    size = file_size(path)
    try:
        with path.open("rb") as file:
            length = _header_length(path, size, file.read(8))
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    found = parse_json(path, raw, unique)
    found.pop("__metadata__", None)
    tensors = [_entry(path, name, value) for name, value in found.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_layout(path, tensors, size - 8 - length)
    return Header(path, length, tuple(tensors))


def file_size(path: Path) -> int:
    """Bytes of a regular file.

    Raises:
        CheckpointError: There is none at `path`: nothing, a loop of links, a device.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: is not a regular file")
    return found.st_size


Pairs = Sequence[tuple[str, object]]
"""The keys and values of an object of JSON, as they are written."""


def unique(pairs: Pairs) -> dict[str, object]:
    """An object whose keys are all different.

    Raises:
        ValueError: One appears twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(iter(repeated(pairs)))
        raise ValueError(f"key {twice[:NAME_LIMIT]!r} appears twice")
    return found


def repeated(pairs: Pairs) -> list[str]:
    """Keys that appear more than once."""
    return [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def parse_json(
    path: Path, raw: bytes, make: Callable[[Pairs], dict[str, object]]
) -> dict[str, object]:
    """Parse an object.

    Args:
        path: Where it is from, for errors.
        raw: Its text.
        make: Makes each object, this one and those in it, of its keys and values.

    Raises:
        CheckpointError: `raw` is not such an object, or one of far too many parts.
    """
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


def _header_length(path: Path, size: int, prefix: bytes) -> int:
    if size < 8:
        raise CheckpointError(f"{path}: is not a safetensors file: it has {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT:
        raise CheckpointError(
            f"{path}: is not a safetensors file, or a damaged one: it claims a header of "
            f"{length} bytes, and at most {HEADER_LIMIT} are read"
        )
    if length > size - 8:
        raise CheckpointError(
            f"{path}: is cut short: it claims a header of {length} bytes and has {size} in all"
        )
    return length


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    found = value if isinstance(value, dict) else {}
    dtype, shape, span = found.get("dtype"), _sizes(found, "shape"), _sizes(found, "data_offsets")
    if not isinstance(dtype, str) or shape is None or span is None or len(span) != 2:
        raise CheckpointError(f"{path}: tensor {name!r} is not described as safetensors asks")
    if len(shape) > RANK_LIMIT or any(side > DIMENSION_LIMIT for side in shape):
        raise CheckpointError(f"{path}: tensor {name!r} has an impossible shape")
    return TensorEntry(name, dtype, shape, span[0], span[1], path)


def _sizes(described: Mapping[str, object], key: str) -> tuple[int, ...] | None:
    value = described.get(key)
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def _check_layout(path: Path, tensors: Sequence[TensorEntry], size: int) -> None:
    """Bytes must be described exactly once, as the format demands."""
    position = 0
    for tensor in tensors:
        if tensor.begin != position or tensor.end < tensor.begin:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} claims bytes {tensor.begin} to {tensor.end}, "
                f"which overlap others or leave a hole at {position}"
            )
        bits = _BITS.get(tensor.dtype)
        if bits is not None and prod(tensor.shape) * bits != (tensor.end - tensor.begin) * 8:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape}, and "
                f"claims {tensor.end - tensor.begin} bytes"
            )
        position = tensor.end
    if position != size:
        raise CheckpointError(
            f"{path}: is cut short or damaged: its tensors take {position} bytes, {size} are there"
        )


LOADABLE: Final = frozenset(
    {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
    | {"F16", "BF16", "F32", "F8_E4M3", "F8_E8M0"}
)
"""What mlx can load. It gives 8-bit floats as `uint8`."""


def read_tensors(
    entries: Mapping[str, TensorEntry], done: Callable[[int], None] = lambda _: None
) -> dict[str, mx.array]:
    """Read tensors into memory.

    Args:
        entries: What to read, by the name that it is returned under.
        done: Called with the bytes of each tensor that has been read.

    Raises:
        CheckpointError: A file changed since its header was read, or holds a kind of
            number that mlx does not have.
    """
    check_memory(entries)
    arrays = open_tensors(entries)
    for name, entry in entries.items():
        try:
            mx.eval(arrays[name])
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{entry.path}: cannot be read: {error}") from error
        done(entry.end - entry.begin)
    return arrays


def open_tensors(entries: Mapping[str, TensorEntry]) -> dict[str, mx.array]:
    """Tensors whose bytes are read when they are needed: shapes and types are known already.

    Args:
        entries: By the name that they are returned under.

    Raises:
        CheckpointError: See `read_tensors`.
    """
    by_file: dict[Path, list[TensorEntry]] = defaultdict(list)
    for entry in entries.values():
        if entry.dtype not in LOADABLE:
            raise CheckpointError(
                f"{entry.path}: tensor {entry.name!r} is {entry.dtype} {entry.shape}, which mlx "
                f"cannot read. {SUPPORTED}"
            )
        by_file[entry.path].append(entry)
    found = {path: _open_file(path, wanted) for path, wanted in by_file.items()}
    return {name: found[entry.path][entry.name] for name, entry in entries.items()}


def check_memory(entries: Mapping[str, TensorEntry]) -> None:
    """Do not begin what cannot end well: a sparse file may truly be as long as it claims.

    Raises:
        CheckpointError: The tensors take more memory than this machine has.
    """
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return
    size = sum(entry.end - entry.begin for entry in entries.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        path = next(iter(entries.values())).path
        raise CheckpointError(
            f"{path}: the head takes {size} bytes, and this machine has {memory} bytes of memory"
        )


def _open_file(path: Path, wanted: Sequence[TensorEntry]) -> dict[str, mx.array]:
    if not set(wanted) <= set(read_header(path).tensors):
        raise CheckpointError(f"{path}: changed while it was read")
    try:
        # Nothing but the header is read here.
        every = cast(dict[str, mx.array], mx.load(str(path), format="safetensors"))
        return {entry.name: every[entry.name] for entry in wanted}
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
