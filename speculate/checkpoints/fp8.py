"""Matrices in blocks of 8-bit floats, as Hugging Face publishes some: made plain here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import mlx.core as mx

from speculate.checkpoints.folder import section
from speculate.errors import CheckpointError

SUFFIX: Final = "_scale_inv"
DEFAULT_BLOCK: Final = (128, 128)


def unpack_blocks(
    weights: Mapping[str, mx.array], config: Mapping[str, object], dtype: mx.Dtype
) -> dict[str, mx.array]:
    """Multiply out every matrix that has a scale per block.

    Args:
        weights: By name. `x.weight` `(..., rows, columns)` as `uint8` goes with
            `x.weight_scale_inv` `(..., row blocks, column blocks)`.
        config: Tells the size of a block.
        dtype: Of the result.

    Raises:
        CheckpointError: Scales without a matrix, or of a shape that does not fit it.
    """
    plain = {name: w for name, w in weights.items() if not name.endswith(SUFFIX)}
    block = _block(config)
    for name, scales in weights.items():
        if name.endswith(SUFFIX):
            target = name.removesuffix(SUFFIX)
            plain[target] = _unpack(target, plain.get(target), scales, block).astype(dtype)
            mx.eval(plain[target])
    return plain


def _block(config: Mapping[str, object]) -> tuple[int, int]:
    found = section(config, "quantization_config").get("weight_block_size")
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int for n in found):
        return max(1, found[0]), max(1, found[1])
    return DEFAULT_BLOCK


def _unpack(
    name: str, weight: mx.array | None, scales: mx.array, block: tuple[int, int]
) -> mx.array:
    if weight is None or weight.dtype != mx.uint8 or weight.ndim < 2:
        raise CheckpointError(f"{name}: has scales for blocks, but is no matrix of 8-bit floats")
    rows, columns = weight.shape[-2:]
    # No larger than the matrix: a config may name a block of any size.
    block = (max(1, min(block[0], rows)), max(1, min(block[1], columns)))
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    if scales.shape != (*weight.shape[:-2], *blocks):
        raise CheckpointError(
            f"{name}: of shape {weight.shape} in blocks of {block} needs {blocks} scales, "
            f"found {scales.shape}"
        )
    tall = mx.repeat(scales.astype(mx.float32), block[0], axis=-2)[..., :rows, :]
    wide = mx.repeat(tall, block[1], axis=-1)[..., :columns]
    return mx.from_fp8(weight, mx.float32) * wide
