"""What a round takes, in steps of plain decoding: a table, kept current from the rounds."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from statistics import fmean, median, median_low
from typing import Final, final

from speculate.protocols import Costs

RECENT: Final = 7
"""Rounds that a median is taken over: three that were disturbed do not move it."""

ENOUGH: Final = 3
"""Rounds after which a depth goes by its own times."""

CHANGED: Final = 1.15
"""Factor by which a time differs before it counts as another one."""

CHECKS: Final = 2
"""Plain rounds that show what plain decoding takes."""

LASTING: Final = 5
"""Rounds of other times after which they are a proposer's own. One more than it takes to
check plain decoding, so that a machine which slowed down as a whole is not blamed on it."""

OUTDATED: Final = 128
"""Rounds without a proposer after which all that was seen of its times counts as one round."""

RECHECKED: Final = 512
"""Rounds after which plain decoding is timed again, in any case."""

CLOSE: Final = 1.1
"""Tokens per plain step below which it matters what plain decoding takes."""

RECHECKED_CLOSE: Final = 256
"""Rounds after which it is timed again, there."""

GUESSED: Final = Costs(0, {1: 1.0, 2: 1.15, 4: 1.4, 8: 2.0}, {})
"""What is expected before anything was measured, of a 4-bit model on a laptop."""

GUESSED_DRAFT: Final = 0.12
"""Time of one drafted token before anything was measured, in plain steps."""


BATCHED_ROW: Final = 1 / 32
"""Time that one of many rows in a batch takes before any was timed, in steps of the same model."""

LARGE: Final = 64
"""Rows of a batch whose time stands out of what rounds vary by."""


@final
class Timing:
    """Times of rounds, relative to a round without drafts.

    A round that was disturbed (a page fault, another program) moves nothing. What stays
    different is first taken for a change of the machine's pace, which slows every round
    alike; `doubts_plain` then asks for plain rounds, which show whether it was. If it was
    not, and drafting still takes as long, drafting has changed.

    Args:
        costs: What was measured; `None` to start from a guess.
        proposers: Names of the proposers, and whether they draft without the device.
        deepest: Most tokens of a draft.
        lately: It was measured just now, or is to be believed; else the machine may have
            another pace by now.
    """

    def __init__(
        self,
        costs: Costs | None,
        proposers: Mapping[str, bool],
        deepest: int,
        *,
        lately: bool = True,
    ) -> None:
        table = GUESSED if costs is None else costs
        unit = table.forward[1]
        rows = [interpolated(table.forward, count) / unit for count in range(1, deepest + 2)]
        # More rows never take less, whatever a measurement says.
        rows = list(accumulate(rows, max))
        self._steps: dict[str, float] = {}
        self._tables: dict[str, list[float]] = {}
        for name, free in proposers.items():
            guess = 0.0 if free else GUESSED_DRAFT
            step = table.draft[name] / unit if name in table.draft else guess
            self._steps[name] = step
            self._tables[name] = [time + step * depth for depth, time in enumerate(rows)]
        self._times = {name: list(table) for name, table in self._tables.items()}
        # Of a plain round, in seconds: now, when it was checked, and by each of the last rounds.
        self._pace = self._checked_pace = 0.0 if costs is None else unit
        self._paces = deque([self._pace] * RECENT, maxlen=RECENT)
        self._in_doubt = costs is None or not lately
        self._checks: list[float] = []
        # Rounds of a depth in plain rounds, and of a proposer relative to its table, which
        # counts as one of them. Then those which were neither, and rounds without somebody.
        self._ratios: dict[tuple[str, int], deque[float]] = {}
        self._factors = {name: deque([1.0], maxlen=RECENT) for name in proposers}
        self._odd: dict[str, list[float]] = {name: [] for name in proposers}
        self._idle: dict[str | None, int] = dict.fromkeys([None, *proposers], 0)
        self._batched_rows: deque[float] = deque(maxlen=RECENT)

    @property
    def plain_seconds(self) -> float:
        """Time of a plain round now; 0 before any was timed."""
        return self._pace

    def of(self, name: str) -> list[float]:
        """Times of rounds with 0, 1, 2, ... drafts by `name`, in plain steps."""
        return self._times[name]

    def catching_up(self, name: str, tokens: int) -> float:
        """Time in which `name` takes in so many tokens that it missed, in plain steps."""
        if not tokens:
            return 0.0
        # What disturbs a round only ever adds to it.
        return tokens * self._steps[name] * min(self._batched_rows, default=BATCHED_ROW)

    def idle(self, name: str) -> int:
        """Rounds since `name` drafted."""
        return self._idle[name]

    def doubts_plain(self, rate: float) -> bool:
        """Whether to decode without a draft, to see what that takes now.

        Args:
            rate: Tokens per plain step that were expected of the last round.
        """
        self._in_doubt = (
            self._in_doubt
            or self._idle[None] >= (RECHECKED_CLOSE if rate < CLOSE else RECHECKED)
            or _apart(self._pace, self._checked_pace)
        )
        return self._in_doubt

    def observe_plain(self, seconds: float) -> None:
        """A round without drafts took so long."""
        self._count(None)
        if not self._in_doubt:
            self._follow(seconds)
            return
        self._checks.append(seconds)
        if len(self._checks) >= CHECKS or not self._pace:
            # What disturbs a round only ever adds to it.
            least = min(self._checks)
            self._settle(fmean(time for time in self._checks if not _apart(time, least)))

    def observe(self, name: str, depth: int, seconds: float, behind: int = 0) -> None:
        """A round with `depth` drafts by `name` took so long.

        Args:
            name: Who drafted.
            depth: Tokens of the draft.
            seconds: That the round took.
            behind: Tokens that were taken in before the draft.
        """
        if not self._pace:
            return
        if self._count(name) >= OUTDATED:
            self._doubt(name)
        ratio = seconds / self._pace
        if behind:
            self._observe_batch(name, behind, ratio - self._times[name][depth])
            return
        ratios = self._ratios.setdefault((name, depth), deque(maxlen=RECENT))
        if len(ratios) >= ENOUGH:
            change = ratio / self._times[name][depth]
            self._follow(self._pace * change)
            if self._is_odd(name, change):
                return
        ratios.append(ratio)
        self._factors[name].append(ratio / self._tables[name][depth])
        self._refresh(name)

    def _observe_batch(self, name: str, rows: int, time: float) -> None:
        """Catching up took so long, in plain steps. One machine batches alike for all models."""
        if rows >= LARGE and self._steps[name]:
            self._batched_rows.append(max(0.0, time) / (rows * self._steps[name]))

    def _count(self, name: str | None) -> int:
        """A round by `name`: rounds since the last one before."""
        idle = self._idle[name]
        for one in self._idle:
            self._idle[one] += 1
        self._idle[name] = 0
        return idle

    def _follow(self, pace: float) -> None:
        self._paces.append(pace)
        self._pace = sorted(self._paces)[RECENT // 2]

    def _settle(self, plain: float) -> None:
        """Plain decoding takes so long, whatever the rounds with drafts seemed to say."""
        if self._pace and not _apart(plain, self._pace):
            # The machine as a whole: what took long meanwhile was nobody's own.
            self._ratios.clear()
            for odd in self._odd.values():
                odd.clear()
        self._pace = self._checked_pace = plain
        self._paces.extend([plain] * RECENT)
        self._checks.clear()
        self._in_doubt = False

    def _is_odd(self, name: str, change: float) -> bool:
        """Whether a round is not to be learned from, at least for now."""
        odd = self._odd[name]
        if not _apart(change, 1.0):
            odd.clear()
            return False
        odd.append(change)
        if len(odd) >= LASTING:
            # Others may have changed with it, or not.
            factor = median(self._factors[name]) * median(odd)
            for one in self._factors:
                self._doubt(one)
            self._factors[name] = deque([factor], maxlen=RECENT)
            self._refresh(name)
        return True

    def _doubt(self, name: str) -> None:
        """What was learned of `name` counts as one round from now on."""
        self._factors[name] = deque([median_low(self._factors[name])], maxlen=RECENT)
        self._odd[name].clear()
        for place in [place for place in self._ratios if place[0] == name]:
            del self._ratios[place]
        self._refresh(name)

    def _refresh(self, name: str) -> None:
        """A depth that was used has times of its own; others follow the proposer's."""
        # One round alone makes nobody slow.
        factor = median_low(self._factors[name])
        times = [time * factor for time in self._tables[name]]
        for depth in range(1, len(times)):
            ratios = self._ratios.get((name, depth))
            if ratios is not None and len(ratios) >= ENOUGH:
                times[depth] = median(ratios)
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
