"""Reading a few tensors of a large file, and not a byte of the others."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

from speculate.checkpoints.header import TensorEntry, read_header
from speculate.checkpoints.quantization import SUPPORTED
from speculate.errors import CheckpointError

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
