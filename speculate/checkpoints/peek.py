"""What a head is like, told by headers: of its tensors, only the norms are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import attrs
import mlx.core as mx

from speculate.checkpoints.experts import layouts, split_fused
from speculate.checkpoints.find import HeadFiles
from speculate.checkpoints.fp8 import matrix_of
from speculate.checkpoints.names import count_layers, norms
from speculate.checkpoints.norms import NormDecision, decide
from speculate.checkpoints.quantization import Quantization, quantizations
from speculate.checkpoints.read import about, is_part
from speculate.checkpoints.tensors import open_tensors
from speculate.errors import CheckpointError


@attrs.frozen
class HeadSummary:
    """A head, without its weights.

    Attributes:
        files: Names of the files that hold it.
        tensors: How many there are on disk.
        size_bytes: What they take there.
        experts: How each layer's experts are stored: `dense` where it has none.
        packings: Each packing, and how many matrices have it.
        plain: Each type of number, and how many matrices are not packed and have it.
        blocks: Matrices of 8-bit floats with scales.
        norms: What is decided on each group of norms, and why.
        leftovers: Names on disk that no part of a head is known by.
    """

    files: tuple[str, ...]
    tensors: int
    size_bytes: int
    experts: tuple[str, ...]
    packings: tuple[tuple[Quantization, int], ...]
    plain: Mapping[str, int]
    blocks: int
    norms: tuple[NormDecision, ...]
    leftovers: tuple[str, ...]


def peek_head(files: HeadFiles) -> HeadSummary:
    """Describe a head. Reads its norms, a few kilobytes, and nothing else.

    Args:
        files: From `find_head`.

    Raises:
        CheckpointError: It has no norms to decide on, or is packed in a way that mlx lacks.
    """
    known = {name: t for name, t in files.tensors.items() if is_part(name)}
    weights = open_tensors({name: t for name, t in known.items() if matrix_of(name) is None})
    experts = layouts(files.tensors)
    decisions = decide(_norms(files, weights), files.trunk_is_raw)
    packings = _packings(files, weights)
    blocks = {matrix for name in files.tensors if (matrix := matrix_of(name))}
    return HeadSummary(
        files=tuple(sorted({tensor.path.name for tensor in files.tensors.values()})),
        tensors=len(files.tensors),
        size_bytes=sum(tensor.end - tensor.begin for tensor in files.tensors.values()),
        experts=tuple(experts),
        packings=tuple(Counter(packings.values()).most_common()),
        plain=_plain(weights, packings, blocks),
        blocks=len(blocks),
        norms=decisions,
        leftovers=tuple(files.prefix + n for n in files.tensors if n not in known),
    )


def _norms(files: HeadFiles, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    names = norms(max(count_layers(weights), 1))
    missing = [name for name in names if name not in weights]
    if missing:
        raise CheckpointError(
            f"{files.folder}: holds part of a head only: {files.prefix}{missing[0]} is missing"
        )
    return {name: weights[name] for name in names}


def _packings(files: HeadFiles, weights: dict[str, mx.array]) -> dict[str, Quantization]:
    try:
        with about(files):
            split_fused(weights)
            return quantizations(weights)
    except (KeyError, IndexError) as error:
        raise CheckpointError(f"{files.folder}: holds part of a head only: {error}") from error


def _plain(
    weights: Mapping[str, mx.array], packings: Collection[str], blocks: Collection[str]
) -> dict[str, int]:
    matrices = {
        name: array
        for name, array in weights.items()
        if array.ndim > 1 and name.endswith(".weight") and name not in blocks
    }
    plain = [a for name, a in matrices.items() if name.removesuffix(".weight") not in packings]
    return dict(Counter(str(array.dtype).rpartition(".")[2] for array in plain))
