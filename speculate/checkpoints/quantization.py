"""Quantised matrices of a head: mlx's own packings, and 8-bit floats with scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import mlx.core as mx

from speculate.checkpoints.folder import section
from speculate.checkpoints.names import is_known, is_single
from speculate.checkpoints.safetensors import SUPPORTED, Entries
from speculate.errors import CheckpointError

AFFINE_BITS: Final = (1, 2, 3, 4, 5, 6, 8)
AFFINE_GROUPS: Final = (32, 64, 128)
MODES: Final = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
"""What mlx has: bits and group sizes of affine, and (bits, group size) -> mode for modes whose
scales are bytes."""


def matrix_of(name: str) -> str | None:
    """Return the matrix that a tensor scales, by its name; `None` if it is no scale."""
    other_parts = (".bias", "scales", "biases", "global_scale")
    # With either suffix, the scales are factors.
    for suffix in ("_scale_inv", "_scale"):
        matrix = name.removesuffix(suffix)
        if matrix != name and is_known(matrix) and not matrix.endswith(other_parts):
            return matrix
    return None


def unpack_scaled(
    weights: dict[str, mx.array], tensors: Entries, config: Mapping[str, object], dtype: mx.Dtype
) -> None:
    """Multiply every matrix of 8-bit floats with its scales, in place. Synchronises.

    `x.weight` `(..., rows, columns)` as `uint8` goes with `x.weight_scale_inv` or
    `x.weight_scale`: one number, one for each row, each group of a row's columns or each block.
    Single experts are left lazy: they are computed when they are stacked. `tensors` are the same on
    disk, and `config` has the size of a block. Refuses scales without a matrix that they fit.
    """
    block = _block(config)
    for name, matrix in [(name, matrix_of(name)) for name in weights]:
        if matrix is None:
            continue
        scales, weight = weights.pop(name), weights.get(matrix)
        if weight is None or weight.dtype != mx.uint8 or weight.ndim < 2:
            reason = "has scales for blocks, but is no matrix of 8-bit floats"
        elif tensors[name].dtype == "F8_E4M3":
            reason = "has scales that are 8-bit floats themselves"
        elif (fitting := _grid(weight, scales, block)) is None:
            reason = f"has scales that fit neither the matrix, its rows, nor blocks of {block}"
        else:
            grid, tile = fitting
            factors = grid.astype(mx.float32)
            if scales.dtype == mx.uint8:
                # Exponents, with a bias of 127.
                factors = mx.power(2.0, factors - 127)
            weights[matrix] = _multiply(weight, factors, tile, dtype)
            if not is_single(matrix):
                mx.eval(weights[matrix])
            continue
        raise CheckpointError(f"{matrix}: {reason}: {stored_as(tensors, matrix)}. {SUPPORTED}")


def _block(config: Mapping[str, object]) -> tuple[int, int]:
    found = section(config, "quantization_config").get("weight_block_size")
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int for n in found):
        return max(1, found[0]), max(1, found[1])
    return 128, 128


def _grid(
    weight: mx.array, scales: mx.array, block: tuple[int, int]
) -> tuple[mx.array, tuple[int, int]] | None:
    """Return scales as a grid `(..., down, across)`, and the rows and columns that share a scale.

    `None` if they do not fit the matrix.
    """
    lead, (rows, columns) = weight.shape[:-2], weight.shape[-2:]
    if scales.size == 1:
        return mx.broadcast_to(scales.reshape(1, 1), (*lead, 1, 1)), (rows, columns)
    own = scales.shape[len(lead) :]
    if scales.shape[: len(lead)] != lead or len(own) > 2:
        return None
    down, across = (*own, 1, 1)[:2]
    group = columns // across if across and columns % across == 0 else 0
    if (down, across) == (-(-rows // block[0]), -(-columns // block[1])):
        # No larger than the matrix: a config may name a block of any size.
        tile = min(block[0], rows), min(block[1], columns)
    elif (down, across) == (1, 1):
        tile = rows, columns
    elif down == rows and (group == 32 or (group and scales.dtype != mx.uint8)):
        # 32 columns share an exponent; other factors are shared by any number.
        tile = 1, group
    else:
        return None
    return scales.reshape(*lead, down, across), tile


def _multiply(
    weight: mx.array, scales: mx.array, tile: tuple[int, int], dtype: mx.Dtype
) -> mx.array:
    if weight.ndim > 2:
        # One expert after another, to limit the memory in float32.
        pairs = zip(weight, scales, strict=True)
        parts = [_multiply(expert, factors, tile, dtype) for expert, factors in pairs]
        for part in parts:
            mx.eval(part)
        return mx.stack(parts)
    rows, columns = weight.shape
    by_row = mx.repeat(scales, tile[0], axis=0)[:rows]
    factors = mx.repeat(by_row, tile[1], axis=1)[:, :columns]
    return (mx.from_fp8(weight, mx.float32) * factors).astype(dtype)


@attrs.frozen
class Quantization:
    """How a matrix is quantised, in mlx's terms.

    Attributes:
        bits: Bits a weight.
        group_size: Weights that share a scale.
        mode: `affine`, `mxfp4`, `mxfp8` or `nvfp4`.
        global_scale: Whether each expert has one more scale (`nvfp4` only).
    """

    bits: int
    group_size: int
    mode: str
    global_scale: bool = False


Packings = Mapping[str, Quantization]
"""Module -> quantisation. Other modules are not quantised."""


def stored_as(tensors: Entries, name: str) -> str:
    """Return how a matrix is stored, for errors: each tensor with its dtype and shape."""
    module = name.removesuffix(".weight")
    own = [n for n in tensors if n == module or n.startswith((f"{module}.", f"{module}_"))]
    return ", ".join(f"{n} is {tensors[n].dtype} {tensors[n].shape}" for n in own)


def quantizations(weights: Mapping[str, mx.array]) -> dict[str, Quantization]:
    """Infer how each module is quantised that has scales, from shapes and dtypes of a whole head.

    Refuses a quantisation that mlx does not have.
    """
    modules = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    return {module: _quantization(weights, module) for module in modules}


def _input_width(weights: Mapping[str, mx.array], module: str) -> int:
    """Return the columns of a matrix before quantisation, from the matrices that feed it."""
    width = weights["pre_fc_norm_hidden.weight"].shape[0]
    owner, _, name = module.rpartition(".")
    if name == "fc":
        return 2 * width
    if name == "o_proj":
        # q_proj makes the queries and a gate of the same width.
        return weights[f"{owner}.q_proj.weight"].shape[0] // 2
    if name == "down_proj":
        return weights[f"{owner}.gate_proj.weight"].shape[-2]
    return width


def _quantization(weights: Mapping[str, mx.array], module: str) -> Quantization:
    packed, scales = weights.get(f"{module}.weight"), weights[f"{module}.scales"]
    if packed is None or packed.dtype != mx.uint32:
        raise CheckpointError(f"{module}: has scales, but no matrix packed in 32-bit words")
    width = _input_width(weights, module)
    bits, odd_bits = divmod(packed.shape[-1] * 32, max(width, 1))
    group, odd_group = divmod(width, max(scales.shape[-1], 1))
    affine = scales.dtype != mx.uint8
    known = bits in AFFINE_BITS and group in AFFINE_GROUPS if affine else (bits, group) in MODES
    if odd_bits or odd_group or not known:
        raise CheckpointError(
            f"{module}: {packed.shape} words with {scales.shape} {scales.dtype} scales for "
            f"{width} columns is no packing that mlx knows"
        )
    mode = "affine" if affine else MODES[bits, group]
    biases = weights.get(f"{module}.biases")
    if (biases is not None) != affine:
        raise CheckpointError(f"{module}: {mode} {'needs' if affine else 'has no'} biases")
    for part in (scales, biases):
        if affine and part is not None and not mx.issubdtype(part.dtype, mx.floating):
            raise CheckpointError(f"{module}: {part.dtype} is no type for scales and biases")
    shape = (*packed.shape[:-1], width // group)
    if scales.shape != shape or (biases is not None and biases.shape != shape):
        raise CheckpointError(f"{module}: has {scales.shape} scales, and needs {shape}")
    return Quantization(bits, group, mode, f"{module}.global_scale" in weights)


def plain_matrices(weights: Mapping[str, mx.array], packings: Packings) -> list[str]:
    """Return the modules that could be quantised, and are not."""
    matrices = [name for name, tensor in weights.items() if tensor.ndim > 1]
    modules = [name.removesuffix(".weight") for name in matrices if name.endswith(".weight")]
    return [module for module in modules if module not in packings]


def dequantize(
    weights: Mapping[str, mx.array], packings: Packings, dtype: mx.Dtype
) -> dict[str, mx.array]:
    """Return the tensors with the matrices of these modules dequantised to a dtype.

    Refuses experts that have a scale each, which only a GPU dequantises.
    """
    plain = dict(weights)
    for module, packing in packings.items():
        if packing.global_scale:
            text = f"{module}: has a scale for each expert, and cannot be dequantised"
            raise CheckpointError(text)
        packed, scales = (plain.pop(f"{module}.{part}") for part in ("weight", "scales"))
        biases = plain.pop(f"{module}.biases", None)
        if biases is not None:
            # Converted first: mlx multiplies in the type of the scales.
            scales, biases = scales.astype(dtype), biases.astype(dtype)
        size, bits, mode = packing.group_size, packing.bits, packing.mode
        matrix = mx.dequantize(packed, scales, biases, size, bits, mode, dtype=dtype)
        plain[f"{module}.weight"] = matrix
    return plain
