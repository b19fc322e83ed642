"""Matrices of 8-bit floats with scales, as Hugging Face publishes some: made plain here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import mlx.core as mx

from speculate.checkpoints.experts import is_expert, is_single
from speculate.checkpoints.folder import section
from speculate.checkpoints.header import TensorEntry
from speculate.checkpoints.names import is_known
from speculate.checkpoints.quantization import SUPPORTED, stored_as
from speculate.errors import CheckpointError

SUFFIXES: Final = ("_scale_inv", "_scale")
"""What scales are called, after their matrix. By either name they are factors of its numbers."""

PARTS: Final = (".bias", "scales", "biases", "global_scale")
"""Ends of names that are no matrix's."""

DEFAULT_BLOCK: Final = (128, 128)
EXPONENT_BIAS: Final = 127
EXPONENT_GROUP: Final = 32
"""Columns that share a scale where scales are exponents and have rows of their own."""


def matrix_of(name: str) -> str | None:
    """The matrix that a tensor's name says it scales; `None` where the tensor is no scale."""
    for suffix in SUFFIXES:
        matrix = name.removesuffix(suffix)
        known = matrix != name and (is_known(matrix) or is_expert(matrix))
        if known and not matrix.endswith(PARTS):
            return matrix
    return None


def unpack_scaled(
    weights: dict[str, mx.array],
    tensors: Mapping[str, TensorEntry],
    config: Mapping[str, object],
    dtype: mx.Dtype,
) -> None:
    """Multiply out every matrix of 8-bit floats. Synchronises.

    But for single experts, which are multiplied out when they are stacked.

    Args:
        weights: By name; changed itself, so that what is packed can be freed. `x.weight`
            `(..., rows, columns)` as `uint8` goes with `x.weight_scale_inv` or
            `x.weight_scale`: one number, one for each row, each group of a row's columns or
            each block.
        tensors: The same on disk.
        config: Tells the size of a block.
        dtype: Of the result.

    Raises:
        CheckpointError: Scales without a matrix, or of a shape or a type that does not fit it.
    """
    block = _block(config)
    for name in [name for name in weights if matrix_of(name)]:
        matrix = matrix_of(name) or name
        scales, weight = weights.pop(name), weights.get(matrix)
        if weight is None or weight.dtype != mx.uint8 or weight.ndim < 2:
            reason = "has scales for blocks, but is no matrix of 8-bit floats"
        elif tensors[name].dtype == "F8_E4M3":
            reason = "has scales that are 8-bit floats themselves"
        elif (fitting := _grid(weight, scales, block)) is None:
            reason = f"has scales that fit neither the matrix, its rows, nor blocks of {block}"
        else:
            weights[matrix] = _multiply(weight, _plain(fitting), dtype, block)
            if not is_single(matrix):
                mx.eval(weights[matrix])
            continue
        raise CheckpointError(f"{matrix}: {reason}: {stored_as(tensors, matrix)}. {SUPPORTED}")


def _block(config: Mapping[str, object]) -> tuple[int, int]:
    found = section(config, "quantization_config").get("weight_block_size")
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int for n in found):
        return max(1, found[0]), max(1, found[1])
    return DEFAULT_BLOCK


def _grid(weight: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array | None:
    """Scales as `(..., row blocks, column blocks)`; `None` where they do not fit the matrix."""
    lead, (rows, columns) = weight.shape[:-2], weight.shape[-2:]
    if scales.size == 1:
        return mx.broadcast_to(scales.reshape(1, 1), (*lead, 1, 1))
    own = scales.shape[len(lead) :]
    if scales.shape[: len(lead)] != lead or len(own) > 2:
        return None
    down, across = (*own, 1, 1)[:2]
    exponents = scales.dtype == mx.uint8
    in_rows = down == rows and columns % across == 0
    if exponents:
        in_rows = in_rows and columns // across == EXPONENT_GROUP
    if (down, across) not in ((1, 1), _blocks((rows, columns), block)) and not in_rows:
        return None
    return scales.reshape(*lead, down, across)


def _blocks(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _plain(scales: mx.array) -> mx.array:
    """Scales are floats, or bytes that hold the exponent of a power of two."""
    numbers = scales.astype(mx.float32)
    return mx.power(2.0, numbers - EXPONENT_BIAS) if scales.dtype == mx.uint8 else numbers


def _multiply(
    weight: mx.array, scales: mx.array, dtype: mx.Dtype, block: tuple[int, int]
) -> mx.array:
    if weight.ndim > 2:
        # One expert after the other, so that little is in float32 at a time.
        pairs = zip(weight, scales, strict=True)
        parts = [_multiply(expert, factors, dtype, block) for expert, factors in pairs]
        for part in parts:
            mx.eval(part)
        return mx.stack(parts)
    rows, columns = weight.shape
    if scales.shape == _blocks((rows, columns), block):
        # No larger than the matrix: a config may name a block of any size.
        tall, wide = min(block[0], rows), min(block[1], columns)
    else:
        tall, wide = rows // scales.shape[0], columns // scales.shape[1]
    by_row = mx.repeat(scales, tall, axis=0)[:rows]
    factors = mx.repeat(by_row, wide, axis=1)[:, :columns]
    return (mx.from_fp8(weight, mx.float32) * factors).astype(dtype)
