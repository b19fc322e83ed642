"""Quantising a head, and undoing it: as mlx-lm does with a trunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import mlx.core as mx

from speculate.checkpoints.quantization import Quantization
from speculate.checkpoints.read import HeadTensors
from speculate.errors import CheckpointError

Choice = Callable[[str], Quantization | None]
"""How to pack a module, by its name without prefix; `None` leaves it plain."""

ROUTERS: Final = ("mlp.gate", "mlp.shared_expert_gate")
FINE: Final = Quantization(bits=8, group_size=64, mode="affine")
"""What a trunk's own predicate chooses for routers, whatever the rest is packed like."""

PARTS: Final = ("weight", "scales", "biases", "global_scale")


def as_trunks(packing: Quantization) -> Choice:
    """The choice that the trunks of these families make: everything alike, routers finer."""

    def choose(module: str) -> Quantization | None:
        return FINE if module.endswith(ROUTERS) else packing

    return choose


def quantize_head(
    head: HeadTensors, choose: Choice, done: Callable[[str], None] = lambda _: None
) -> HeadTensors:
    """Pack every plain matrix whose width the choice divides. Synchronises.

    Args:
        head: From `read_head`.
        choose: How to pack each module.
        done: Called with the name of each module that was looked at.
    """
    weights, packings = dict(head.weights), dict(head.quantization)
    for module in plain_matrices(head):
        packing, matrix = choose(module), weights[f"{module}.weight"]
        if packing is not None and matrix.shape[-1] % packing.group_size == 0:
            packed = mx.quantize(matrix, packing.group_size, packing.bits, mode=packing.mode)
            mx.eval(packed)
            # zip stops early: only affine has biases.
            parts = zip(PARTS, packed, strict=False)
            weights.update((f"{module}.{part}", array) for part, array in parts)
            packings[module] = packing
        done(module)
    return attrs.evolve(head, weights=weights, quantization=packings)


def dequantize_head(
    head: HeadTensors, *, keep: Choice = lambda _: None, dtype: mx.Dtype | None = None
) -> HeadTensors:
    """Unpack quantised matrices.

    Args:
        head: From `read_head`.
        keep: A packing that may stay as it is, by module.
        dtype: Of the result; by default that of the head's norms.

    Raises:
        CheckpointError: Experts have a scale of their own each, which only a GPU unpacks.
    """
    dtype = dtype or head.weights["norm.weight"].dtype
    weights, packings = dict(head.weights), dict(head.quantization)
    for module, packing in head.quantization.items():
        if keep(module) == packing:
            continue
        if packing.global_scale:
            raise CheckpointError(f"{module}: has a scale for each expert, and cannot be unpacked")
        parts = [weights.pop(f"{module}.{part}", None) for part in PARTS[:3]]
        weights[f"{module}.weight"] = _unpack(parts, packing, dtype)
        del packings[module]
    return attrs.evolve(head, weights=weights, quantization=packings)


def cast_head(head: HeadTensors, dtype: mx.Dtype) -> HeadTensors:
    """Give a head's floating-point numbers another type."""

    def cast(name: str, array: mx.array) -> mx.array:
        keep = name.endswith(".global_scale") or not mx.issubdtype(array.dtype, mx.floating)
        return array if keep else array.astype(dtype)

    return attrs.evolve(head, weights={n: cast(n, a) for n, a in head.weights.items()})


def plain_matrices(head: HeadTensors) -> list[str]:
    """Modules that could be quantised, and are not."""
    found = [
        name.removesuffix(".weight")
        for name, array in head.weights.items()
        if name.endswith(".weight") and array.ndim > 1
    ]
    return [module for module in found if module not in head.quantization]


def _unpack(parts: list[mx.array | None], packing: Quantization, dtype: mx.Dtype) -> mx.array:
    weight, scales, biases = parts
    if weight is None or scales is None:
        raise CheckpointError("a quantised matrix has lost its scales")
    return mx.dequantize(
        weight, scales, biases, packing.group_size, packing.bits, packing.mode, dtype=dtype
    )
