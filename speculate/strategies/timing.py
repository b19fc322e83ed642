"""What a round takes, in steps of plain decoding: a table, kept current from the rounds."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final, final

from speculate.protocols import Costs

RECENT: Final = 7
"""Rounds that a median is taken over: three that were disturbed do not move it."""

ENOUGH: Final = 3
"""Rounds after which a depth goes by its own times."""

CHANGED: Final = 1.15
"""Factor by which the machine's pace changes before plain decoding is timed again."""

GUESSED: Final = Costs(0, {1: 1.0, 2: 1.15, 4: 1.4, 8: 2.0}, {})
"""What is expected before anything was measured, of a 4-bit model on a laptop."""

GUESSED_DRAFT: Final = 0.12
"""Time of one drafted token before anything was measured, in plain steps."""


@final
class Timing:
    """Times of rounds, relative to a round without drafts.

    A round that was disturbed (a page fault, another program) moves nothing. What changes
    for good is first taken for a change of the machine's pace, which slows every round
    alike; `doubts_plain` then asks for a plain round, which shows whether it was.

    Args:
        costs: What was measured; `None` to start from a guess.
        proposers: Names of the proposers, and whether they draft without the device.
        deepest: Most tokens of a draft.
    """

    def __init__(self, costs: Costs | None, proposers: Mapping[str, bool], deepest: int) -> None:
        table = GUESSED if costs is None else costs
        unit = table.forward[1]
        rows = [interpolated(table.forward, count) / unit for count in range(1, deepest + 2)]
        self._tables: dict[str, list[float]] = {}
        for name, free in proposers.items():
            guess = 0.0 if free else GUESSED_DRAFT
            step = table.draft[name] / unit if name in table.draft else guess
            self._tables[name] = [time + step * depth for depth, time in enumerate(rows)]
        self._pace = self._checked_pace = 0.0 if costs is None else unit
        self._paces: deque[float] = deque(maxlen=RECENT)
        self._plain, self._plains = 1.0, deque[float](maxlen=RECENT)
        self._in_doubt = costs is None
        # Rounds of a depth relative to the pace, and of a proposer relative to its table too.
        self._ratios: dict[tuple[str, int], deque[float]] = {}
        self._factors = {name: deque[float](maxlen=RECENT) for name in proposers}
        self._lately: deque[str] = deque(maxlen=RECENT)
        self._times = {name: list(table) for name, table in self._tables.items()}

    @property
    def plain_seconds(self) -> float:
        """Time of a plain round now; 0 before any was timed."""
        return self._plain * self._pace

    def of(self, name: str) -> list[float]:
        """Times of rounds with 0, 1, 2, ... drafts by `name`, in plain steps."""
        return self._times[name]

    def doubts_plain(self) -> bool:
        """Whether to decode without a draft, to see what that takes now."""
        if not self._in_doubt and _apart(self._pace, self._checked_pace):
            self._in_doubt = True
            self._plains.clear()
        return self._in_doubt

    def observe_plain(self, seconds: float) -> None:
        """A round without drafts took so long."""
        first = not self._pace
        self._pace = self._pace or seconds
        before = self._plain
        self._plains.append(seconds / self._pace)
        if not self._in_doubt:
            self._plain = median(self._plains)
            self._follow(seconds / self._plain)
        elif first or len(self._plains) > 1:
            self._plain = min(self._plains)
            self._checked_pace = self._pace
            self._in_doubt = False
        if _apart(self._plain, before):
            # Who was not used lately may have changed with plain decoding, or not.
            self._ratios.clear()
            for name in self._factors.keys() - set(self._lately):
                self._factors[name].clear()
        if self._plain != before:
            for name in self._times:
                self._refresh(name)

    def observe(self, name: str, depth: int, seconds: float) -> None:
        """A round with `depth` drafts by `name` took so long."""
        if not self._pace:
            return
        ratio = seconds / self._pace
        ratios = self._ratios.setdefault((name, depth), deque(maxlen=RECENT))
        if len(ratios) >= ENOUGH:
            self._follow(seconds / median(ratios))
        ratios.append(ratio)
        self._lately.append(name)
        self._factors[name].append(ratio / self._tables[name][depth])
        self._refresh(name)

    def _follow(self, pace: float) -> None:
        self._paces.append(pace)
        self._pace = median(self._paces)

    def _refresh(self, name: str) -> None:
        """A depth that was used has times of its own; others follow the proposer's."""
        factors = self._factors[name]
        factor = median(factors) / self._plain if factors else 1.0
        times = [time * factor for time in self._tables[name]]
        for depth in range(1, len(times)):
            ratios = self._ratios.get((name, depth))
            if ratios is not None and len(ratios) >= ENOUGH:
                times[depth] = median(ratios) / self._plain
        self._times[name] = times


def _apart(one: float, other: float) -> bool:
    return not 1 / CHANGED < one / other < CHANGED


def interpolated(table: Mapping[int, float], at: int) -> float:
    """A value between those of a table, along straight lines, also beyond its ends.

    Args:
        table: Values by their place, at least two of them.
        at: A place.
    """
    known = sorted(table)
    right = min(max(bisect_left(known, at), 1), len(known) - 1)
    low, high = known[right - 1], known[right]
    slope = (table[high] - table[low]) / (high - low)
    return table[low] + slope * (at - low)
