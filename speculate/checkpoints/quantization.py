"""How each matrix of a head is packed: told by shapes, which cannot be out of date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import mlx.core as mx

from speculate.checkpoints.header import TensorEntry
from speculate.errors import CheckpointError

AFFINE_BITS: Final = (1, 2, 3, 4, 5, 6, 8)
AFFINE_GROUPS: Final = (32, 64, 128)
MODES: Final = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
"""Modes whose scales are bytes: each has one width and one group."""


SUPPORTED: Final = (
    "Supported are plain floats (F16, BF16, F32); mlx's affine, mxfp4, mxfp8 and nvfp4, which are "
    "32-bit words with .scales; and 8-bit floats (F8_E4M3) with factors in weight_scale_inv or "
    "weight_scale: one for the matrix, each row, each group of a row's columns, or each block"
)
"""What a packing may be, for errors."""


@attrs.frozen
class Quantization:
    """How a matrix is packed, in mlx's terms.

    Attributes:
        bits: Bits a weight.
        group_size: Weights that share a scale.
        mode: `affine`, `mxfp4`, `mxfp8` or `nvfp4`.
        global_scale: Whether one more scale goes with each expert (`nvfp4` only).
    """

    bits: int
    group_size: int
    mode: str
    global_scale: bool = False


def stored_as(tensors: Mapping[str, TensorEntry], name: str) -> str:
    """What there is of a matrix on disk, for errors: each name with its type and shape."""
    module = name.removesuffix(".weight")
    own = [n for n in tensors if n == module or n.startswith((f"{module}.", f"{module}_"))]
    return ", ".join(f"{n} is {tensors[n].dtype} {tensors[n].shape}" for n in own)


def quantizations(weights: Mapping[str, mx.array]) -> dict[str, Quantization]:
    """Tell the packing of every matrix that has scales.

    Args:
        weights: A whole head, by name without prefix, experts stacked.

    Returns:
        By module. What is not in it is not quantised.

    Raises:
        CheckpointError: A matrix is packed in a way that mlx does not have.
    """
    modules = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    return {module: _quantization(weights, module) for module in modules}


def input_width(weights: Mapping[str, mx.array], module: str) -> int:
    """Columns of a matrix before it was packed, told by those that feed it."""
    width = weights["pre_fc_norm_hidden.weight"].shape[0]
    owner, _, name = module.rpartition(".")
    if name == "fc":
        return 2 * width
    if name == "o_proj":
        # Queries come with a gate of the same width, which is multiplied on.
        return weights[f"{owner}.q_proj.weight"].shape[0] // 2
    if name == "down_proj":
        return weights[f"{owner}.gate_proj.weight"].shape[-2]
    return width


def _quantization(weights: Mapping[str, mx.array], module: str) -> Quantization:
    packed, scales = weights.get(f"{module}.weight"), weights[f"{module}.scales"]
    if packed is None or packed.dtype != mx.uint32:
        raise CheckpointError(f"{module}: has scales, but no matrix packed in 32-bit words")
    width = input_width(weights, module)
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
