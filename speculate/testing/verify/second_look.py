"""A second look, where something is further off than what rounding was seen to do elsewhere.

Rounding has a heavy tail: where a router finds two experts as good as equally good, the last bit
decides which of them a token goes to. No sample of other places shows how far apart that is. So
mlx-lm's own model is asked at the very place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from speculate.testing.verify.results import Difference
from speculate.testing.verify.rounding import MARGIN
from speculate.testing.verify.subject import Subject


def second_look(
    subject: Subject,
    differences: Sequence[Difference],
    ids: Sequence[int],
    first: int,
    position: int,
) -> list[Difference]:
    """Tell rounding from mistakes once more. Without a suspect, or where nothing rounds, free.

    Args:
        subject: The model.
        differences: Found in one text.
        ids: The text.
        first: Its first token whose logits were compared.
        position: What differences call the place of these.
    """
    if subject.rounding.noise == 0 or not any(map(_suspect, differences)):
        return list(differences)
    spread = subject.spread(ids, first)
    return [
        _judged(one, spread[one.position - position]) if _suspect(one) else one
        for one in differences
    ]


def _suspect(difference: Difference) -> bool:
    return difference.kind == "bug" and math.isfinite(difference.size)


def _judged(difference: Difference, spread: float) -> Difference:
    explained = difference.size <= MARGIN * spread
    return attrs.evolve(difference, kind="numerics" if explained else "bug", spread=spread)
