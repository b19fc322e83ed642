"""Matrices in blocks of 8-bit floats, as Hugging Face publishes some: made plain here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import mlx.core as mx

from speculate.checkpoints.experts import is_single
from speculate.checkpoints.folder import section
from speculate.errors import CheckpointError

SUFFIX: Final = "_scale_inv"
DEFAULT_BLOCK: Final = (128, 128)
EXPONENT_BIAS: Final = 127


def unpack_blocks(
    weights: dict[str, mx.array], config: Mapping[str, object], dtype: mx.Dtype
) -> None:
    """Multiply out every matrix that has a scale per block. Synchronises.

    But for single experts, which are multiplied out when they are stacked.

    Args:
        weights: By name; changed itself, so that what is packed can be freed. `x.weight`
            `(..., rows, columns)` as `uint8` goes with `x.weight_scale_inv`
            `(..., row blocks, column blocks)`.
        config: Tells the size of a block.
        dtype: Of the result.

    Raises:
        CheckpointError: Scales without a matrix, or of a shape that does not fit it.
    """
    block = _block(config)
    for name in [name for name in weights if name.endswith(SUFFIX)]:
        scales, target = weights.pop(name), name.removesuffix(SUFFIX)
        weights[target] = _unpack(target, weights.get(target), scales, block, dtype)
        if not is_single(target):
            mx.eval(weights[target])


def _block(config: Mapping[str, object]) -> tuple[int, int]:
    found = section(config, "quantization_config").get("weight_block_size")
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int for n in found):
        return max(1, found[0]), max(1, found[1])
    return DEFAULT_BLOCK


def _unpack(
    name: str,
    weight: mx.array | None,
    scales: mx.array,
    block: tuple[int, int],
    dtype: mx.Dtype,
) -> mx.array:
    if weight is None or weight.dtype != mx.uint8 or weight.ndim < 2:
        raise CheckpointError(f"{name}: has scales for blocks, but is no matrix of 8-bit floats")
    rows, columns = weight.shape[-2:]
    # No larger than the matrix: a config may name a block of any size.
    tall, wide = max(1, min(block[0], rows)), max(1, min(block[1], columns))
    blocks = (*weight.shape[:-2], -(-rows // tall), -(-columns // wide))
    if scales.shape != blocks:
        raise CheckpointError(
            f"{name}: of shape {weight.shape} in blocks of {block} needs scales of shape "
            f"{blocks}, found {scales.shape}"
        )
    return _multiply(weight, _plain(scales), (tall, wide), dtype)


def _plain(scales: mx.array) -> mx.array:
    """Scales are floats, or bytes that hold the exponent of a power of two."""
    numbers = scales.astype(mx.float32)
    return mx.power(2.0, numbers - EXPONENT_BIAS) if scales.dtype == mx.uint8 else numbers


def _multiply(
    weight: mx.array, scales: mx.array, block: tuple[int, int], dtype: mx.Dtype
) -> mx.array:
    if weight.ndim > 2:
        # One expert after the other, so that little is in float32 at a time.
        pairs = zip(weight, scales, strict=True)
        parts = [_multiply(expert, factors, block, dtype) for expert, factors in pairs]
        for part in parts:
            mx.eval(part)
        return mx.stack(parts)
    rows, columns = weight.shape
    by_row = mx.repeat(scales, block[0], axis=0)[:rows]
    wide = mx.repeat(by_row, block[1], axis=1)[:, :columns]
    return (mx.from_fp8(weight, mx.float32) * wide).astype(dtype)
