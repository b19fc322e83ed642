"""From a head's tensors to its modules: checked against the trunk before anything is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from typing_extensions import Protocol

from speculate.errors import HeadMismatchError
from speculate.models._mtp_module import HeadModule, MTPModule
from speculate.models.mtp_trunk import Trunk

PACKED_PARTS = ("scales", "biases", "global_scale")


class Packing(Protocol):
    """How a matrix is quantised, in mlx's terms."""

    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def global_scale(self) -> bool: ...


class HeadWeights(Protocol):
    """A head's tensors, by name without prefix: norms hold gains, experts are stacked."""

    @property
    def weights(self) -> Mapping[str, mx.array]: ...
    @property
    def quantization(self) -> Mapping[str, Packing]: ...


def build_module(trunk: Trunk, head: HeadWeights) -> HeadModule:
    """Make a head's modules.

    Raises:
        HeadMismatchError: A tensor does not fit the trunk, is missing, or has no place.
            Names it, its shape and the shape that was expected.
    """
    with _keeping_random_state():
        module = _blank(trunk, head.weights)
        check_shapes(dict(_parameters(module)), head)
        _pack(module, head.quantization)
    _fill(module, _in_dtype(head.weights, trunk.dtype()))
    return module


def check_shapes(blank: Mapping[str, mx.array], head: HeadWeights) -> None:
    """Compare a head's tensors with the parameters of a blank one, unquantised.

    Raises:
        HeadMismatchError: See `build_module`.
    """
    expected = {name: _expected(name, like, head) for name, like in blank.items()}
    for name in head.weights:
        module, _, part = name.rpartition(".")
        if part in PACKED_PARTS and module in head.quantization:
            continue
        if name not in expected:
            raise HeadMismatchError(f"mtp.{name}: the model's layers have no such tensor")
    for name, shape in expected.items():
        found = head.weights.get(name)
        if found is None:
            raise HeadMismatchError(f"mtp.{name}: is missing, expected shape {shape}")
        if found.shape != shape:
            raise HeadMismatchError(f"mtp.{name}: has shape {found.shape}, the model needs {shape}")


def _expected(name: str, like: mx.array, head: HeadWeights) -> tuple[int, ...]:
    module, _, part = name.rpartition(".")
    packing = head.quantization.get(module)
    if packing is None or part != "weight":
        return like.shape
    return (*like.shape[:-1], like.shape[-1] * packing.bits // 32)


def _blank(trunk: Trunk, weights: Mapping[str, mx.array]) -> MTPModule:
    indices = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
    layers = []
    for index in range(len(indices)):
        mlp = f"layers.{index}.mlp"
        dense = weights.get(f"{mlp}.gate_proj.weight")
        experts = any(name.startswith(f"{mlp}.switch_mlp.") for name in weights)
        layers.append(trunk.layer(experts, None if dense is None else dense.shape[0]))
    return MTPModule(trunk.args.hidden_size, trunk.args.rms_norm_eps, layers)


def _pack(module: MTPModule, quantization: Mapping[str, Packing]) -> None:
    """Swap in quantised modules. What they hold is never computed."""

    def choice(path: str, _: Module) -> dict[str, object] | bool:
        packing = quantization.get(path)
        if packing is None:
            return False
        chosen = {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}
        return {**chosen, "global_scale": True} if packing.global_scale else chosen

    quantize(module, class_predicate=choice)


def _fill(module: Module, weights: Mapping[str, mx.array]) -> None:
    module.load_weights(list(weights.items()))
    module.eval()
    mx.eval(module.parameters())


def _in_dtype(weights: Mapping[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
    """The trunk's numbers throughout: one float32 norm would make all that follows float32."""

    def convert(name: str, array: mx.array) -> mx.array:
        keep = name.endswith(".global_scale") or not mx.issubdtype(array.dtype, mx.floating)
        return array if keep else array.astype(dtype)

    return {name: convert(name, array) for name, array in weights.items()}


def _parameters(module: Module) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))


@contextmanager
def _keeping_random_state() -> Iterator[None]:
    """Stock layers draw their first weights, and a program's own draws must not change."""
    before = mx.array(_random_state())
    try:
        yield
    finally:
        _random_state()[:] = before


def _random_state() -> mx.array:
    """The key of this thread's generator, which draws replace and a write changes."""
    return cast(Sequence[mx.array], mx.random.state)[0]
