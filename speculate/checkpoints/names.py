"""What a head's tensors are called: on disk, where there are many ways, and in here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

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
