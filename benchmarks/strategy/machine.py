"""Machines by published costs: what a round takes, and what a clock shows of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, final

from speculate.protocols import Costs
from speculate.strategies.round_times import interpolated

CURVES: Final[Mapping[str, Mapping[int, float]]] = {
    "flat": {1: 1.0, 8: 1.0},
    "1/1.12/1.48/2.25": {1: 1.0, 3: 1.12, 5: 1.48, 8: 2.25},
    "1.03/1.47/2.69": {1: 1.0, 2: 1.03, 4: 1.47, 8: 2.69},
    "1.83/3.26/6.12": {1: 1.0, 2: 1.83, 4: 3.26, 8: 6.12},
}
"""Times of a forward over so many rows, in forwards over one: at 3, 5 and 8, and at 2, 4 and 8."""

DRAFT_TIMES: Final[Mapping[str, float]] = {"mtp": 0.08, "draft": 0.15, "lookup": 0.0}
"""Time of one drafted token, in forwards over one row."""

DEEPEST: Final = 12
STEP_SECONDS: Final = 0.02
NOISE: Final = 0.03
"""Standard deviation of what a clock shows, of a time's logarithm."""

DISTURBED: Final = 0.004
DISTURBANCE: Final = 8.0
"""So often a round is disturbed, and shows this many times its time."""


@final
class Machine:
    """A machine, and a clock that is neither exact nor undisturbed.

    Args:
        curve: Time of a forward by its rows, in forwards over one; one of `CURVES`.
        seed: Of the clock.
        draft: Time of one drafted token by its proposer, in the same unit.
    """

    def __init__(
        self,
        curve: Mapping[int, float],
        seed: str = "",
        draft: Mapping[str, float] = DRAFT_TIMES,
    ) -> None:
        self._rows = [interpolated(curve, rows) for rows in range(1, DEEPEST + 2)]
        self._draft = draft
        self._random = random.Random(seed)

    def time(self, proposer: str | None, drafted: int) -> float:
        """Time of a round, in plain steps."""
        drafting = drafted * self._draft[proposer] if proposer else 0.0
        return self._rows[drafted] + drafting

    def shown(self, time: float) -> float:
        """What the clock shows of a time in plain steps, in seconds."""
        disturbed = DISTURBANCE if self._random.random() < DISTURBED else 1.0
        return STEP_SECONDS * time * disturbed * self._random.lognormvariate(0.0, NOISE)

    def costs(self) -> Costs:
        """What measuring beforehand would have found here."""
        forward = {rows: STEP_SECONDS * self._rows[rows - 1] for rows in (1, 2, 3, 5, 9)}
        draft = {name: STEP_SECONDS * time for name, time in self._draft.items()}
        return Costs(0, forward, draft)
