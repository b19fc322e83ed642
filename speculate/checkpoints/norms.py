"""Whether a head's norms hold their gains, or what Hugging Face stores: the gains minus one.

Nothing in a file says which. Taking one for the other never crashes and changes no output;
it only ruins every draft. Files mix the two: a converted trunk with a raw head, or a head
of which a tool shifted some norms and forgot others. So each group is decided on its own
evidence, which is how large its values are. Heads that were published have these means:

| norms | gains | raw |
|---|---|---|
| queries and keys | 1.7 to 1.8 | 0.7 to 0.8 |
| before attention and before the MLP | 0.9 to 1.2 | 0.0 to 0.4 |
| before `fc` | 0.3 to 0.8 | -0.7 to -0.2 |
| final | 2.2 to 3.6 | 1.2 to 2.6 |

The second row tells the two apart, the first one often, the last two hardly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
"""`raw` norms are the gains minus one."""

CONVENTIONS: Final[tuple[str, ...]] = get_args(Convention)

SURE_LAYER: Final = (0.4, 0.55)
SURE_ATTENTION: Final = (0.45, 1.5)
"""Means below the first are raw, above the second gains; in between others decide."""

SMALLEST_FINAL: Final = 0.5
SMALLEST_RAW_FINAL: Final = 1.1
"""Final norms: a smaller mean is no gain; a mean under the second is not raw."""


@attrs.frozen
class NormDecision:
    """What was decided on a group of norms.

    Attributes:
        group: Its name, for people.
        norms: The modules in it.
        convention: How they are stored.
        mean: Of all their values, as stored.
        reason: Why, in a few words.
    """

    group: str
    norms: tuple[str, ...]
    convention: Convention
    mean: float
    reason: str


@attrs.frozen
class _Verdict:
    convention: Convention
    reason: str
    sure: bool = True


def decide(
    weights: Mapping[str, mx.array], trunk_is_raw: bool | None, forced: Convention | None = None
) -> tuple[NormDecision, ...]:
    """Decide on every group of a head's norms. Synchronises.

    Args:
        weights: The head's, by name without prefix; all its norms among them.
        trunk_is_raw: What the trunk beside it says; decides only what the norms leave open.
        forced: A convention that a person has named: then nothing is decided.
    """
    decisions: list[NormDecision] = []

    def settle(group: str, norms: Iterable[str], verdict: _Verdict) -> None:
        if forced:
            verdict = _Verdict(forced, "as asked for")
        names = tuple(norms)
        mean = _mean(weights, names)
        decisions.append(NormDecision(group, names, verdict.convention, mean, verdict.reason))

    votes = []
    for index in range(count_layers(weights)):
        around = [f"layers.{index}.{norm}" for norm in LAYER_NORMS]
        attention = [f"layers.{index}.{norm}" for norm in ATTENTION_NORMS]
        layer, query = _layer(_mean(weights, around), _mean(weights, attention), trunk_is_raw)
        votes.append(layer)
        settle(f"layer {index}", around, layer)
        settle(f"layer {index}, queries and keys", attention, query)
    head = next((vote for vote in votes if vote.sure), votes[0])
    outer = _outer(_mean(weights, OUTER_NORMS), head)
    settle("before fc", OUTER_NORMS, outer)
    settle("final", [FINAL_NORM], _final(_mean(weights, [FINAL_NORM]), outer, trunk_is_raw))
    return tuple(decisions)


def shift(weights: dict[str, mx.array], decisions: Iterable[NormDecision]) -> None:
    """Turn raw norms into gains, in `weights` itself, as mlx-lm does for a trunk."""
    for decision in decisions:
        if decision.convention == "raw":
            for norm in decision.norms:
                weights[f"{norm}.weight"] = weights[f"{norm}.weight"] + 1.0


def _mean(weights: Mapping[str, mx.array], norms: Iterable[str]) -> float:
    means = [weights[f"{norm}.weight"].astype(mx.float32).mean() for norm in norms]
    return cast(float, mx.stack(means).mean().item())


def _layer(around: float, attention: float, trunk_is_raw: bool | None) -> tuple[_Verdict, _Verdict]:
    """Decide on a layer's own norms and its attention's, from both together."""
    own, other = _by_size(around, SURE_LAYER), _by_size(attention, SURE_ATTENTION)
    known = own or other
    if known is None:
        both = _guess(around, trunk_is_raw)
        return both, both
    return _stated(own, known, "queries and keys"), _stated(other, known, "the layer's norms")


def _by_size(mean: float, sure: tuple[float, float]) -> Convention | None:
    if mean < sure[0]:
        return "raw"
    return "gains" if mean > sure[1] else None


def _stated(own: Convention | None, known: Convention, others: str) -> _Verdict:
    if own is not None:
        return _Verdict(own, "by their mean")
    return _Verdict(known, f"the mean says little; as {others}")


def _guess(around: float, trunk_is_raw: bool | None) -> _Verdict:
    if trunk_is_raw is None:
        nearest: Convention = "raw" if around < sum(SURE_LAYER) / 2 else "gains"
        return _Verdict(nearest, "the means say little; this is nearer", sure=False)
    trunk: Convention = "raw" if trunk_is_raw else "gains"
    return _Verdict(trunk, "the means say little; as the trunk beside it", sure=False)


def _outer(mean: float, layer: _Verdict) -> _Verdict:
    # Small in either convention, so their size says nothing. Their sign does: gains that are
    # negative on average would turn what they norm upside down.
    if mean < 0.0:
        return _Verdict("raw", "negative on average, which gains never are")
    return _Verdict(layer.convention, "small in either convention; as the layer's norms")


def _final(mean: float, outer: _Verdict, trunk_is_raw: bool | None) -> _Verdict:
    if mean < SMALLEST_FINAL:
        return _Verdict("raw", "smaller than gains of a final norm are")
    if mean < SMALLEST_RAW_FINAL and not trunk_is_raw:
        return _Verdict("gains", "smaller than a raw final norm is")
    return _Verdict(outer.convention, "large in either convention; as the norms before fc")
