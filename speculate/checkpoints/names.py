"""What a head's tensors are called: on disk, where there are many ways, and in here."""

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
"""What stands before a head's names in a checkpoint that also holds a trunk."""

BARE_MARKS: Final = frozenset({"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
"""Modules that together tell a drafter, whose names have no prefix."""

LAYER_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
ATTENTION_NORMS: Final = ("self_attn.q_norm", "self_attn.k_norm")
OUTER_NORMS: Final = ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
FINAL_NORM: Final = "norm"
PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj")

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
    """Split a name on disk into prefix and rest; `None` where it is not a head's."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return None


def are_bare(names: Iterable[str]) -> bool:
    """Whether all of these names, which are one file's, are those of a head."""
    return set(names).issuperset(f"{module}.weight" for module in BARE_MARKS)


def is_known(name: str) -> bool:
    """Whether a name without prefix, experts stacked, is one that a head may have."""
    return bool(_NORM.fullmatch(name) or _MATRIX.fullmatch(name))


def rank(name: str) -> int:
    """Axes of a head's tensor, by its name without prefix, experts stacked."""
    stacked = 1 if ".switch_mlp." in name else 0
    if _NORM.fullmatch(name) or name.endswith(".bias"):
        return 1 + stacked
    return stacked if name.endswith(".global_scale") else 2 + stacked


def count_layers(names: Iterable[str]) -> int:
    """Layers that names without prefix speak of, counted to the highest."""
    found = (_LAYER.match(name) for name in names)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def required(layers: int, expert_layers: Iterable[int]) -> list[str]:
    """Names that a head of this many layers cannot do without, experts stacked."""
    names = ["fc", *OUTER_NORMS, FINAL_NORM]
    with_experts = set(expert_layers)
    for index in range(layers):
        attention = (*ATTENTION_NORMS, *(f"self_attn.{part}_proj" for part in "qkvo"))
        inner = (*LAYER_NORMS, *attention, *_mlp(index in with_experts))
        names += [f"layers.{index}.{module}" for module in inner]
    return [f"{module}.weight" for module in names]


def norms(layers: int) -> list[str]:
    """The norms among `required`."""
    return [name for name in required(layers, ()) if _NORM.fullmatch(name)]


def _mlp(experts: bool) -> list[str]:
    if not experts:
        return [f"mlp.{part}" for part in PROJECTIONS]
    groups = ("switch_mlp", "shared_expert")
    parts = [f"mlp.{group}.{part}" for group in groups for part in PROJECTIONS]
    return ["mlp.gate", "mlp.shared_expert_gate", *parts]


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
