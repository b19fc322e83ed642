"""What outcomes amount to, and the goals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, final

import attrs

from benchmarks.strategy.simulation import Outcome

WORKLOADS: Final = ("code", "prose", "copy", "mixed", "adversarial")
GOALS: Final[Mapping[str, float]] = {
    **dict.fromkeys(WORKLOADS, 1.03),
    "mixed": 1.0,
    "p95": 1.05,
    "plain": 1.03,
    "start": 1.03,
}


@final
@attrs.frozen
class Score:
    """Ratios of times, the lower the better.

    Attributes:
        workloads: Mean over the best fixed choice of each request, workload by workload.
        p95: The same over all requests, exceeded by one in twenty.
        plain: Worst over plain decoding.
        start: Mean over the best fixed choice for the first 128 tokens, at token 128.
    """

    workloads: Mapping[str, float]
    p95: float
    plain: float
    start: float

    def values(self) -> dict[str, float]:
        """All of them by name, in the order of `GOALS`."""
        return {**self.workloads, "p95": self.p95, "plain": self.plain, "start": self.start}


def score(outcomes: Sequence[Outcome]) -> Score:
    """Sum up outcomes, those of several machines alike."""
    return Score(
        workloads={
            name: fmean(one.ratio for one in outcomes if one.workload == name) for name in WORKLOADS
        },
        p95=percentile([one.ratio for one in outcomes], 0.95),
        plain=max(one.time / one.plain for one in outcomes),
        start=fmean(one.start / one.best_start.time for one in outcomes),
    )


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of all values do not exceed."""
    return sorted(values)[math.ceil(part * len(values)) - 1]
