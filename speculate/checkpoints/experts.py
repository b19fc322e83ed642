"""The experts of a head's layer: however they are stored, stacked is how they are used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import mlx.core as mx

from speculate.checkpoints.names import PROJECTIONS, count_layers
from speculate.errors import CheckpointError

DENSE: Final = "dense"
FUSED: Final = "fused"
SINGLE: Final = "one by one"
STACKED: Final = "stacked"

_PARTS: Final = r"weight|scales|biases|global_scale"
_MLP: Final = r"layers\.(0|[1-9]\d{0,2})\.mlp"
_FUSED: Final = re.compile(rf"{_MLP}\.experts\.(gate_up|down)_proj(?:[._]({_PARTS}))?")
_SINGLE: Final = re.compile(
    rf"{_MLP}\.experts\.(0|[1-9]\d{{0,5}})\.((?:gate|up|down)_proj)\.({_PARTS})"
)
_STACKED: Final = re.compile(rf"{_MLP}\.switch_mlp\.")

Weights = dict[str, mx.array]
_Groups = dict[tuple[str, str, str], dict[int, str]]
"""Names on disk: by layer, projection and part, then by expert."""


def is_expert(name: str) -> bool:
    """Whether a name without prefix is one of an expert that is not stacked yet."""
    return bool(_FUSED.fullmatch(name) or _SINGLE.fullmatch(name))


def layouts(names: Mapping[str, object]) -> list[str]:
    """How each layer keeps its experts: one of `DENSE`, `FUSED`, `SINGLE`, `STACKED`."""
    found = [DENSE] * count_layers(names)
    for name in names:
        for kind, pattern in ((FUSED, _FUSED), (SINGLE, _SINGLE), (STACKED, _STACKED)):
            if match := pattern.match(name):
                found[int(match[1])] = kind
    return found


def is_single(name: str) -> bool:
    """Whether a name without prefix is that of one expert alone."""
    return _SINGLE.fullmatch(name) is not None


def stack_experts(weights: Weights, done: Callable[[int], None] = lambda _: None) -> None:
    """Bring experts to the form `mlp.switch_mlp.{gate,up,down}_proj`, `(experts, out, in)`.

    Changes `weights` itself: one expert at a time is put into its stack and let go, so that
    those which are read only then never take memory of their own. Synchronises.

    Args:
        weights: By name without prefix.
        done: Called with the bytes of each expert's part that is in its stack.

    Raises:
        CheckpointError: An expert is missing or has another shape than the others. Names it.
    """
    split_fused(weights)
    _stack_singles(weights, done)


def split_fused(weights: Weights) -> None:
    """Take gate and up apart, in `weights` itself. Reads nothing.

    Raises:
        CheckpointError: They cannot be two matrices for each expert.
    """
    for name in list(weights):
        match = _FUSED.fullmatch(name)
        if match is None:
            continue
        base, part = f"layers.{match[1]}.mlp.switch_mlp", match[3] or "weight"
        tensor = weights.pop(name)
        if match[2] == "down":
            weights[f"{base}.down_proj.{part}"] = tensor
            continue
        gate, up = (tensor, tensor) if part == "global_scale" else _halves(name, tensor)
        weights[f"{base}.gate_proj.{part}"] = gate
        weights[f"{base}.up_proj.{part}"] = up


def _halves(name: str, tensor: mx.array) -> tuple[mx.array, mx.array]:
    if tensor.ndim != 3 or tensor.shape[1] % 2:
        raise CheckpointError(f"{name}: {tensor.shape} is no stack of two matrices per expert")
    middle = tensor.shape[1] // 2
    return tensor[:, :middle], tensor[:, middle:]


def _stack_singles(weights: Weights, done: Callable[[int], None]) -> None:
    groups: _Groups = defaultdict(dict)
    for name in weights:
        if match := _SINGLE.fullmatch(name):
            groups[f"layers.{match[1]}.mlp", match[3], match[4]][int(match[2])] = name
    counts = {layer: _count(weights, groups, layer) for layer, _, _ in groups}
    for layer, count in counts.items():
        _check_complete(groups, layer, count)
    for (layer, projection, part_name), by_expert in groups.items():
        _check_alike(by_expert, [weights[by_expert[expert]] for expert in range(counts[layer])])
        first = weights[by_expert[0]]
        stack = mx.zeros((counts[layer], *first.shape), first.dtype)
        del first
        for expert in range(counts[layer]):
            part = weights.pop(by_expert[expert])
            stack[expert] = part
            # Written in place, for nobody else holds the stack.
            mx.eval(stack)
            done(part.nbytes)
        weights[f"{layer}.switch_mlp.{projection}.{part_name}"] = stack


def _count(weights: Weights, groups: _Groups, layer: str) -> int:
    """Experts of a layer: the rows of its router, which say it even when some are missing."""
    router = weights.get(f"{layer}.gate.weight")
    if router is not None and router.ndim == 2:
        return router.shape[0]
    return 1 + max(max(experts) for (where, _, _), experts in groups.items() if where == layer)


def _check_complete(groups: _Groups, layer: str, count: int) -> None:
    parts = [(projection, part) for where, projection, part in groups if where == layer]
    for projection, part in [*((p, "weight") for p in PROJECTIONS), *parts]:
        experts = groups.get((layer, projection, part), {})
        absent = next((expert for expert in range(count) if expert not in experts), None)
        if absent is not None:
            name = f"{layer}.experts.{absent}.{projection}.{part}"
            raise CheckpointError(f"{name}: is missing; the layer has {count} experts")
        if len(experts) > count:
            raise CheckpointError(f"{experts[max(experts)]}: the layer has {count} experts")


def _check_alike(by_expert: Mapping[int, str], tensors: list[mx.array]) -> None:
    first = tensors[0]
    for expert, tensor in enumerate(tensors):
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise CheckpointError(
                f"{by_expert[expert]}: is {tensor.dtype} {tensor.shape}, and the first expert's "
                f"is {first.dtype} {first.shape}"
            )
