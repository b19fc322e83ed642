"""Names of a head's tensors, on disk in several layouts and here in one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import mlx.core as mx

from speculate.errors import CheckpointError

PREFIXES: Final = (
    "model.language_model.mtp.",
    "language_model.model.mtp.",
    "language_model.mtp.",
    "model.mtp.",
    "mtp.",
)
"""Prefixes of a head's names in a checkpoint that also holds a trunk."""

BARE_MARKS: Final = frozenset({"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
"""Modules that together identify a head checkpoint, whose names have no prefix."""

LAYER_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
ATTENTION_NORMS: Final = ("self_attn.q_norm", "self_attn.k_norm")
OUTER_NORMS: Final = ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
FINAL_NORM: Final = "norm"
PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj")

DENSE: Final = "dense"
FUSED: Final = "fused"
SINGLE: Final = "one by one"
STACKED: Final = "stacked"
"""How a layer stores its experts: `DENSE` has none."""

_NUMBER = r"(?:0|[1-9]\d{0,2})"
_PROJECTION = r"(?:gate|up|down)_proj"
_NORM: Final = re.compile(
    rf"(?:norm|pre_fc_norm_embedding|pre_fc_norm_hidden|layers\.{_NUMBER}\."
    r"(?:input_layernorm|post_attention_layernorm|self_attn\.[qk]_norm))\.weight"
)
_MATRIX: Final = re.compile(
    rf"(?:fc|layers\.{_NUMBER}\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|shared_expert_gate|"
    rf"{_PROJECTION}|shared_expert\.{_PROJECTION}|switch_mlp\.{_PROJECTION})))"
    r"\.(?:weight|bias|scales|biases|global_scale)"
)
_LAYER: Final = re.compile(rf"layers\.({_NUMBER})\.")


def strip_prefix(name: str) -> tuple[str, str] | None:
    """Split a name on disk into prefix and rest; `None` if it is not a head's."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return None


def are_bare(names: Iterable[str]) -> bool:
    """Return whether these names of one file are a head's, without prefix."""
    return set(names).issuperset(f"{module}.weight" for module in BARE_MARKS)


def is_known(name: str) -> bool:
    """Return whether a head may have a tensor of this name, without prefix, experts stacked."""
    return bool(_NORM.fullmatch(name) or _MATRIX.fullmatch(name))


def rank(name: str) -> int:
    """Return the number of axes of a head's tensor, by its name without prefix, experts stacked."""
    stacked = 1 if ".switch_mlp." in name else 0
    if _NORM.fullmatch(name) or name.endswith(".bias"):
        return 1 + stacked
    return stacked if name.endswith(".global_scale") else 2 + stacked


def count_layers(names: Iterable[str]) -> int:
    """Return the number of layers in names without prefix: the highest index plus one."""
    found = (_LAYER.match(name) for name in names)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def required(layers: int, expert_layers: Iterable[int]) -> list[str]:
    """Return the names that a complete head of this many layers has, experts stacked."""
    names = ["fc", *OUTER_NORMS, FINAL_NORM]
    with_experts = set(expert_layers)
    for index in range(layers):
        attention = (*ATTENTION_NORMS, *(f"self_attn.{part}_proj" for part in "qkvo"))
        inner = (*LAYER_NORMS, *attention, *_mlp(index in with_experts))
        names += [f"layers.{index}.{module}" for module in inner]
    return [f"{module}.weight" for module in names]


def norms(layers: int) -> list[str]:
    """Return the names of the norms among `required`."""
    return [name for name in required(layers, ()) if _NORM.fullmatch(name)]


def _mlp(experts: bool) -> list[str]:
    if not experts:
        return [f"mlp.{part}" for part in PROJECTIONS]
    groups = ("switch_mlp", "shared_expert")
    parts = [f"mlp.{group}.{part}" for group in groups for part in PROJECTIONS]
    return ["mlp.gate", "mlp.shared_expert_gate", *parts]


_PARTS: Final = r"weight|scales|biases|global_scale"
_MLP: Final = r"layers\.(0|[1-9]\d{0,2})\.mlp"
_FUSED: Final = re.compile(rf"{_MLP}\.experts\.(gate_up|down)_proj(?:[._]({_PARTS}))?")
_SINGLE: Final = re.compile(
    rf"{_MLP}\.experts\.(0|[1-9]\d{{0,5}})\.((?:gate|up|down)_proj)\.({_PARTS})"
)
_STACKED: Final = re.compile(rf"{_MLP}\.switch_mlp\.")

Weights = dict[str, mx.array]
_Groups = dict[tuple[str, str, str], dict[int, str]]
"""(layer, projection, part) -> expert -> name on disk."""


def is_expert(name: str) -> bool:
    """Return whether a name without prefix is one of experts that are not stacked yet."""
    return bool(_FUSED.fullmatch(name) or _SINGLE.fullmatch(name))


def layouts(names: Mapping[str, object]) -> list[str]:
    """Return how each layer stores its experts: `DENSE`, `FUSED`, `SINGLE` or `STACKED`."""
    found = [DENSE] * count_layers(names)
    for name in names:
        for kind, pattern in ((FUSED, _FUSED), (SINGLE, _SINGLE), (STACKED, _STACKED)):
            if match := pattern.match(name):
                found[int(match[1])] = kind
    return found


def is_single(name: str) -> bool:
    """Return whether a name without prefix is that of a single expert."""
    return _SINGLE.fullmatch(name) is not None


def stack_experts(weights: Weights, done: Callable[[int], None] = lambda _: None) -> None:
    """Stack experts as `mlp.switch_mlp.{gate,up,down}_proj`, `(experts, out, in)`, in place.

    Experts are copied into their stack and freed one by one, so that experts read lazily never
    need memory of their own. Synchronises.

    Args:
        weights: Tensors by name without prefix; changed.
        done: Called after each expert's tensor was stacked, with its size in bytes.

    Raises:
        CheckpointError: An expert is missing, or its shape differs from the others'. Names it.
    """
    split_fused(weights)
    _stack_singles(weights, done)


def split_fused(weights: Weights) -> None:
    """Split fused gate and up projections, in place. Reads no data.

    Raises:
        CheckpointError: A tensor cannot be two matrices for each expert.
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
        gate, up = (tensor, tensor) if part == "global_scale" else _gate_and_up(name, tensor)
        weights[f"{base}.gate_proj.{part}"] = gate
        weights[f"{base}.up_proj.{part}"] = up


def _gate_and_up(name: str, tensor: mx.array) -> tuple[mx.array, mx.array]:
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
            # Written in place, since nothing else references the stack.
            mx.eval(stack)
            done(part.nbytes)
        weights[f"{layer}.switch_mlp.{projection}.{part_name}"] = stack


def _count(weights: Weights, groups: _Groups, layer: str) -> int:
    """Return a layer's number of experts: its router's rows, right even if some are missing."""
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
