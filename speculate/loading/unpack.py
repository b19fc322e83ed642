"""Quantised weights to plain float32: what a CPU multiplies fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import attrs
import mlx.core as mx

from speculate.protocols import StockModel

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

    from speculate.checkpoints.quantization import Quantization
    from speculate.checkpoints.read import HeadTensors

PACKED = (".weight", ".scales", ".biases", ".global_scale")


def unpack_model(stock: StockModel) -> None:
    """Replace every quantised layer of a model, in place, by a plain one in float32."""
    from mlx_lm.utils import dequantize_model

    module = cast("Module", stock)
    module.set_dtype(mx.float32)
    dequantize_model(module)
    # Scales that are bytes unpack to half precision.
    module.set_dtype(mx.float32)


def unpack_head(tensors: HeadTensors) -> HeadTensors:
    """The same for a head's tensors, before it is built."""
    modules = tensors.quantization
    plain = {
        name: array
        for name, array in tensors.weights.items()
        if not any(name == module + part for module in modules for part in PACKED)
    }
    for module, packing in modules.items():
        plain[f"{module}.weight"] = _unpacked(tensors.weights, module, packing)
    return attrs.evolve(tensors, weights=plain, quantization={})


def _unpacked(weights: Mapping[str, mx.array], module: str, packing: Quantization) -> mx.array:
    scales, biases = weights[f"{module}.scales"], weights.get(f"{module}.biases")
    if mx.issubdtype(scales.dtype, mx.floating):
        scales = scales.astype(mx.float32)
    return mx.dequantize(
        weights[f"{module}.weight"],
        scales,
        None if biases is None else biases.astype(mx.float32),
        packing.group_size,
        packing.bits,
        packing.mode,
    )
