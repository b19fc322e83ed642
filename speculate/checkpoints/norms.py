"""Whether a head's norms hold their gains, or what Hugging Face stores: the gains minus one.

Nothing in a file says which. A wrong guess never crashes and changes no output, but ruins every
draft. Files mix the two: a converted trunk with a raw head, or a head of which a tool shifted only
some norms. So each group of norms is decided separately, by the size of its values. Published heads
have these means:

| norms | gains | raw |
|---|---|---|
| queries and keys | 1.7 to 1.8 | 0.7 to 0.8 |
| before attention and before the MLP | 0.9 to 1.2 | 0.0 to 0.4 |
| before `fc` | 0.3 to 0.8 | -0.7 to -0.2 |
| final | 2.2 to 3.6 | 1.2 to 2.6 |

The second row separates the two conventions, the first often, the last two rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, cast, get_args

import attrs
import mlx.core as mx

from speculate.checkpoints.names import (
    ATTENTION_NORMS,
    FINAL_NORM,
    LAYER_NORMS,
    OUTER_NORMS,
    count_layers,
)

Convention = Literal["gains", "raw"]
"""How norms are stored. `raw` norms are the gains minus one."""

CONVENTIONS: Final[tuple[str, ...]] = get_args(Convention)

SURE_LAYER: Final = (0.4, 0.55)
SURE_ATTENTION: Final = (0.45, 1.5)
"""Norms around attention and MLP, and those of queries and keys: a mean below the first is raw,
above the second gains. In between, other norms decide."""


@attrs.frozen
class NormDecision:
    """The convention found for a group of norms.

    Attributes:
        group: Its name, for people.
        norms: Names of its modules.
        convention: How they are stored.
        mean: Mean of all their values, as stored.
        reason: Why, in a few words.
    """

    group: str
    norms: tuple[str, ...]
    convention: Convention
    mean: float
    reason: str


@attrs.frozen
class _Decision:
    convention: Convention
    reason: str
    sure: bool = True


def decide(
    weights: Mapping[str, mx.array], trunk_is_raw: bool | None, forced: Convention | None = None
) -> tuple[NormDecision, ...]:
    """Find the convention of every group of a whole head's norms. Synchronises.

    The trunk of the same checkpoint, if known, decides only where the norms do not. `forced` is a
    convention set by the caller for all groups.
    """

    def mean(norms: Iterable[str]) -> float:
        means = [weights[f"{norm}.weight"].astype(mx.float32).mean() for norm in norms]
        return cast(float, mx.stack(means).mean().item())

    groups: list[tuple[str, Sequence[str], _Decision]] = []
    votes = []
    for index in range(count_layers(weights)):
        around = [f"layers.{index}.{norm}" for norm in LAYER_NORMS]
        attention = [f"layers.{index}.{norm}" for norm in ATTENTION_NORMS]
        layer, query = _layer(mean(around), mean(attention), trunk_is_raw)
        votes.append(layer)
        groups.append((f"layer {index}", around, layer))
        groups.append((f"layer {index}, queries and keys", attention, query))
    vote = next((vote for vote in votes if vote.sure), votes[0])
    # The norms before fc are small in either convention, so only their sign decides: gains that
    # are negative on average would flip the sign of their inputs.
    outer = _Decision(vote.convention, "small in either convention; as the layer's norms")
    if mean(OUTER_NORMS) < 0.0:
        outer = _Decision("raw", "negative on average, which gains never are")
    groups.append(("before fc", OUTER_NORMS, outer))
    groups.append(("final", [FINAL_NORM], _final(mean([FINAL_NORM]), outer, trunk_is_raw)))
    if forced:
        known = _Decision(forced, "as asked for")
        groups = [(group, norms, known) for group, norms, _ in groups]
    return tuple(
        NormDecision(group, tuple(norms), found.convention, mean(norms), found.reason)
        for group, norms, found in groups
    )


def shift(weights: dict[str, mx.array], decisions: Iterable[NormDecision]) -> None:
    """Turn raw norms into gains in place, as mlx-lm does for a trunk."""
    for decision in decisions:
        if decision.convention == "raw":
            for norm in decision.norms:
                weights[f"{norm}.weight"] = weights[f"{norm}.weight"] + 1.0


def _layer(
    around: float, attention: float, trunk_is_raw: bool | None
) -> tuple[_Decision, _Decision]:
    """Decide on a layer's own norms and those of its attention, from both together."""
    own, other = _by_size(around, SURE_LAYER), _by_size(attention, SURE_ATTENTION)
    known = own or other
    if known is None:
        reason, is_raw = "the means say little; as the trunk beside it", trunk_is_raw
        if is_raw is None:
            reason = "the means say little; this is nearer"
            is_raw = around < sum(SURE_LAYER) / 2
        both = _Decision("raw" if is_raw else "gains", reason, sure=False)
        return both, both
    sure, unsure = "by their mean", "the mean says little; as"
    return (
        _Decision(known, sure if own else f"{unsure} queries and keys"),
        _Decision(other or known, sure if other else f"{unsure} the layer's norms"),
    )


def _by_size(mean: float, limits: tuple[float, float]) -> Convention | None:
    if mean < limits[0]:
        return "raw"
    return "gains" if mean > limits[1] else None


def _final(mean: float, outer: _Decision, trunk_is_raw: bool | None) -> _Decision:
    if mean < 0.5:
        return _Decision("raw", "smaller than gains of a final norm are")
    if mean < 1.1 and not trunk_is_raw:
        return _Decision("gains", "smaller than a raw final norm is")
    return _Decision(outer.convention, "large in either convention; as the norms before fc")
