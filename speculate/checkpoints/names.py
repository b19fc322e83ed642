"""Names of a head's tensors, on disk in several layouts and here in one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

_LAYER: Final = r"layers\.(0|[1-9]\d{0,2})\."
_PROJECTION: Final = r"(?:gate|up|down)_proj"
_PARTS: Final = r"weight|scales|biases|global_scale"
_NORM: Final = re.compile(
    rf"(?:norm|pre_fc_norm_embedding|pre_fc_norm_hidden|{_LAYER}"
    r"(?:input_layernorm|post_attention_layernorm|self_attn\.[qk]_norm))\.weight"
)
_MATRIX: Final = re.compile(
    rf"(?:fc|{_LAYER}(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|shared_expert_gate|"
    rf"{_PROJECTION}|shared_expert\.{_PROJECTION}|switch_mlp\.{_PROJECTION})))"
    rf"\.(?:bias|{_PARTS})"
)
_FUSED: Final = re.compile(rf"{_LAYER}mlp\.experts\.(gate_up|down)_proj(?:[._]({_PARTS}))?")
_SINGLE: Final = re.compile(
    rf"{_LAYER}mlp\.experts\.(0|[1-9]\d{{0,5}})\.({_PROJECTION})\.({_PARTS})"
)
_STACKED: Final = re.compile(rf"{_LAYER}mlp\.switch_mlp\.")


def strip_prefix(name: str) -> tuple[str, str] | None:
    """Split a name on disk into prefix and rest; `None` if it is not a head's."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return None


def are_bare(names: Iterable[str]) -> bool:
    """Return whether these names of one file are a head's, without prefix."""
    return {f"{module}.weight" for module in ("fc", *OUTER_NORMS)} <= set(names)


def of_head(names: Collection[str]) -> list[str]:
    """Return those names of one file or index, as on disk, that are a head's."""
    return list(names) if are_bare(names) else [name for name in names if strip_prefix(name)]


def is_known(name: str) -> bool:
    """Return whether a head may have a tensor of this name, without prefix, in any layout."""
    return any(pattern.fullmatch(name) for pattern in (_NORM, _MATRIX, _FUSED, _SINGLE))


def rank(name: str) -> int:
    """Return the number of axes of a head's tensor, by its name without prefix, experts stacked."""
    stacked = 1 if ".switch_mlp." in name else 0
    if _NORM.fullmatch(name) or name.endswith(".bias"):
        return 1 + stacked
    return stacked if name.endswith(".global_scale") else 2 + stacked


def count_layers(names: Iterable[str]) -> int:
    """Return the number of layers in names without prefix: the highest index plus one."""
    found = (re.match(_LAYER, name) for name in names)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def required(layouts: Sequence[str]) -> list[str]:
    """Return the names that a complete head of such layers has, experts stacked."""
    names = ["fc", *OUTER_NORMS, FINAL_NORM]
    for index, layout in enumerate(layouts):
        inner = [*LAYER_NORMS, *ATTENTION_NORMS, *(f"self_attn.{part}_proj" for part in "qkvo")]
        groups = ["mlp"]
        if layout != DENSE:
            inner += ["mlp.gate", "mlp.shared_expert_gate"]
            groups = ["mlp.switch_mlp", "mlp.shared_expert"]
        inner += [f"{group}.{part}" for group in groups for part in PROJECTIONS]
        names += [f"layers.{index}.{module}" for module in inner]
    return [f"{module}.weight" for module in names]


def norms(layers: int) -> list[str]:
    """Return the names of the norms among `required`."""
    return [name for name in required([DENSE] * layers) if _NORM.fullmatch(name)]


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


_Groups = dict[tuple[str, str, str], dict[int, str]]
"""(layer, projection, part) -> expert -> name on disk."""


def split_fused(weights: dict[str, mx.array]) -> None:
    """Split fused gate and up projections, in place. Reads no data."""
    for name in list(weights):
        match = _FUSED.fullmatch(name)
        if match is None:
            continue
        base, part = f"layers.{match[1]}.mlp.switch_mlp", match[3] or "weight"
        tensor = weights.pop(name)
        if match[2] == "down":
            weights[f"{base}.down_proj.{part}"] = tensor
            continue
        gate = up = tensor
        if part != "global_scale":
            if tensor.ndim != 3 or tensor.shape[1] % 2:
                text = f"{name}: {tensor.shape} is no stack of two matrices per expert"
                raise CheckpointError(text)
            gate, up = mx.split(tensor, 2, axis=1)
        weights[f"{base}.gate_proj.{part}"] = gate
        weights[f"{base}.up_proj.{part}"] = up


def stack_singles(weights: dict[str, mx.array], done: Callable[[int], None]) -> None:
    """Stack single experts as `mlp.switch_mlp.{gate,up,down}_proj`, `(experts, out, in)`, in place.

    Experts are copied into their stack and freed one by one, so that experts read lazily never
    need memory of their own. `done` is called with the bytes of each. Synchronises. Refuses, by
    name, an expert that is missing, or whose shape differs from the others'.
    """
    groups: _Groups = defaultdict(dict)
    for name in weights:
        if match := _SINGLE.fullmatch(name):
            groups[f"layers.{match[1]}.mlp", match[3], match[4]][int(match[2])] = name
    layers = dict.fromkeys(layer for layer, _, _ in groups)
    counts = {layer: _count(layer, groups, weights.get(f"{layer}.gate.weight")) for layer in layers}
    for (layer, projection, part_name), by_expert in groups.items():
        names = [by_expert[expert] for expert in range(counts[layer])]
        shape, dtype = weights[names[0]].shape, weights[names[0]].dtype
        for name in names:
            if weights[name].shape != shape or weights[name].dtype != dtype:
                raise CheckpointError(
                    f"{name}: is {weights[name].dtype} {weights[name].shape}, and the first "
                    f"expert's is {dtype} {shape}"
                )
        stack = mx.zeros((len(names), *shape), dtype)
        for expert, name in enumerate(names):
            part = weights.pop(name)
            stack[expert] = part
            # Written in place, since nothing else references the stack.
            mx.eval(stack)
            done(part.nbytes)
        weights[f"{layer}.switch_mlp.{projection}.{part_name}"] = stack


def _count(layer: str, groups: _Groups, router: mx.array | None) -> int:
    """Return a layer's number of experts, and refuse the layer if some are missing.

    The router has a row for each. Without one, the expert with the highest index is the last.
    """
    parts = {(projection, part): e for (own, projection, part), e in groups.items() if own == layer}
    count = 1 + max(max(experts) for experts in parts.values())
    if router is not None and router.ndim == 2:
        count = router.shape[0]
    for projection, part in [*((p, "weight") for p in PROJECTIONS), *parts]:
        experts = parts.get((projection, part), {})
        absent = next((expert for expert in range(count) if expert not in experts), None)
        if absent is not None:
            name = f"{layer}.experts.{absent}.{projection}.{part}"
            raise CheckpointError(f"{name}: is missing; the layer has {count} experts")
        if len(experts) > count:
            raise CheckpointError(f"{experts[max(experts)]}: the layer has {count} experts")
    return count
