"""Durations of rounds: measured costs, stored across processes, and what observed rounds take."""

from __future__ import annotations

import json
import logging
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Final, final

import attrs

from speculate.errors import OptionError
from speculate.protocols import Costs

MIN_CONTEXT: Final = 256
"""Context length in tokens. All shorter contexts share its costs."""

MAX_PLAUSIBLE_SECONDS: Final = 1e4
"""Upper bound of a plausible measurement, in seconds."""

WINDOW_ROUNDS: Final = 7
"""Rounds in a running median. Three outliers among them do not move it."""

MIN_ROUNDS: Final = 3
"""Rounds after which a depth uses its own times in place of the scaled table."""

CHANGE_FACTOR: Final = 1.15
"""Factor between two times above which they count as different."""

BASELINE_ROUNDS: Final = 2
"""Plain rounds needed to measure the baseline."""

PERSISTENT_ROUNDS: Final = 5
"""Consecutive outliers after which a proposer's own times have changed.

More than the baseline check takes to react, so that a proposer is not blamed when the whole machine
slows down.
"""

STALE_AFTER_ROUNDS: Final = 128
"""Rounds without a proposer after which its old times weigh as much as one new round."""

BASELINE_INTERVAL_ROUNDS: Final = 512
"""Rounds without a plain round after which the baseline is measured again."""

CLOSE_CALL_SPEEDUP: Final = 1.1
"""Expected speedup below which an accurate baseline matters."""

CLOSE_CALL_INTERVAL_ROUNDS: Final = 256
"""Rounds without a plain round after which the baseline is measured again in a close call."""

DEFAULT_COSTS: Final = Costs(0, {1: 1.0, 2: 1.15, 4: 1.4, 8: 2.0}, {})
"""Costs assumed without a measurement, in plain rounds: a 4-bit model on a laptop."""

DEFAULT_DRAFT_COST: Final = 0.12
"""Time of one drafted token assumed without a measurement, in plain rounds."""

BATCHED_ROW_COST: Final = 1 / 32
"""Time of one row of a catch-up batch assumed without a measurement, in steps of the same model."""

MIN_BATCH_ROWS: Final = 64
"""Fewest rows of a catch-up batch whose time exceeds the noise of a round."""

_logger = logging.getLogger(__name__)


@final
class RoundTimes:
    """Durations of rounds, relative to a round without drafts.

    Outliers (a page fault, another program) are ignored. A lasting change is first attributed to
    the machine, which affects all rounds alike; `needs_baseline` then requests plain rounds to
    check. If plain rounds have not changed and drafting still takes as long, the change is
    attributed to the proposer.

    Args:
        costs: Measured costs; `None` to start from defaults.
        proposers: Name of a proposer -> whether it drafts on the host, at no cost.
        max_depth: Most tokens of a draft.
        fresh: Whether the machine's speed cannot have changed since the costs were measured.
    """

    def __init__(
        self,
        costs: Costs | None,
        proposers: Mapping[str, bool],
        max_depth: int,
        *,
        fresh: bool = True,
    ) -> None:
        table = DEFAULT_COSTS if costs is None else costs
        unit = table.forward[1]
        rows = [interpolated(table.forward, count) / unit for count in range(1, max_depth + 2)]
        # More rows never take less time, whatever was measured.
        rows = list(accumulate(rows, max))
        self._steps: dict[str, float] = {}
        self._tables: dict[str, list[float]] = {}
        for name, free in proposers.items():
            default = 0.0 if free else DEFAULT_DRAFT_COST
            step = table.draft[name] / unit if name in table.draft else default
            self._steps[name] = step
            self._tables[name] = [time + step * depth for depth, time in enumerate(rows)]
        self._times = {name: list(table) for name, table in self._tables.items()}
        # Duration of a plain round in seconds, 0 before any was timed: current, when last
        # measured, and as implied by each of the last rounds.
        self.baseline_seconds: float = 0.0 if costs is None else unit
        self._checked_baseline = self.baseline_seconds
        self._baselines = deque([self.baseline_seconds] * WINDOW_ROUNDS, maxlen=WINDOW_ROUNDS)
        self._baseline_stale = costs is None or not fresh
        self._checks: list[float] = []
        # Durations in plain rounds by proposer and depth; and by proposer relative to its table,
        # where the table counts as one round.
        self._ratios: dict[str, dict[int, deque[float]]] = {name: {} for name in proposers}
        self._factors = {name: deque([1.0], maxlen=WINDOW_ROUNDS) for name in proposers}
        self._outliers: dict[str, list[float]] = {name: [] for name in proposers}
        self._idle: dict[str | None, int] = dict.fromkeys([None, *proposers], 0)
        self._batched_rows: deque[float] = deque(maxlen=WINDOW_ROUNDS)

    def of(self, name: str) -> list[float]:
        """Durations of rounds with 0, 1, 2, ... drafts by `name`, in plain rounds."""
        return self._times[name]

    def catch_up_time(self, name: str, tokens: int) -> float:
        """Time in which `name` feeds a backlog of `tokens`, in plain rounds."""
        if not tokens:
            return 0.0
        # Disturbances only ever add time.
        return tokens * self._steps[name] * min(self._batched_rows, default=BATCHED_ROW_COST)

    def idle_rounds(self, name: str) -> int:
        """Rounds since `name` drafted."""
        return self._idle[name]

    def needs_baseline(self, rate: float) -> bool:
        """Whether to measure the baseline, if the last round's expected speedup was `rate`."""
        if not self._baseline_stale:
            close_call = rate < CLOSE_CALL_SPEEDUP
            interval = CLOSE_CALL_INTERVAL_ROUNDS if close_call else BASELINE_INTERVAL_ROUNDS
            drifted = _differ(self.baseline_seconds, self._checked_baseline)
            self._baseline_stale = drifted or self._idle[None] >= interval
        return self._baseline_stale

    def observe_plain(self, seconds: float) -> None:
        """Learn from the duration of a round without drafts."""
        self._count(None)
        if not self._baseline_stale:
            self._update_baseline(seconds)
            return
        self._checks.append(seconds)
        if len(self._checks) >= BASELINE_ROUNDS or not self.baseline_seconds:
            # Disturbances only ever add time.
            least = min(self._checks)
            self._set_baseline(fmean(time for time in self._checks if not _differ(time, least)))

    def observe(self, name: str, depth: int, seconds: float, backlog: int = 0) -> None:
        """Learn from a round in which `name` fed a `backlog`, then drafted `depth` tokens."""
        if not self.baseline_seconds:
            return
        if self._count(name) >= STALE_AFTER_ROUNDS:
            self._invalidate(name)
        ratio = seconds / self.baseline_seconds
        if backlog:
            # The cost of a batched row relative to a step is taken to be the same for all models.
            if backlog >= MIN_BATCH_ROWS and self._steps[name]:
                time = max(0.0, ratio - self._times[name][depth])
                self._batched_rows.append(time / (backlog * self._steps[name]))
            return
        ratios = self._ratios[name].setdefault(depth, deque(maxlen=WINDOW_ROUNDS))
        if len(ratios) >= MIN_ROUNDS:
            change = ratio / self._times[name][depth]
            self._update_baseline(self.baseline_seconds * change)
            if self._is_outlier(name, change):
                return
        ratios.append(ratio)
        self._factors[name].append(ratio / self._tables[name][depth])
        self._refresh(name)

    def _count(self, name: str | None) -> int:
        """Count a round by `name`, and return the rounds since its previous one."""
        idle = self._idle[name]
        for one in self._idle:
            self._idle[one] += 1
        self._idle[name] = 0
        return idle

    def _update_baseline(self, seconds: float) -> None:
        """Follow gradual changes of the baseline."""
        self._baselines.append(seconds)
        self.baseline_seconds = sorted(self._baselines)[WINDOW_ROUNDS // 2]

    def _set_baseline(self, seconds: float) -> None:
        """Replace the baseline by a measured one."""
        if self.baseline_seconds and not _differ(seconds, self.baseline_seconds):
            # The whole machine changed, so the outliers were not the proposers' own.
            for name, outliers in self._outliers.items():
                outliers.clear()
                self._ratios[name].clear()
        self.baseline_seconds = self._checked_baseline = seconds
        self._baselines.extend([seconds] * WINDOW_ROUNDS)
        self._checks.clear()
        self._baseline_stale = False

    def _is_outlier(self, name: str, change: float) -> bool:
        """Whether to ignore a round, at least for now."""
        outliers = self._outliers[name]
        if not _differ(change, 1.0):
            outliers.clear()
            return False
        outliers.append(change)
        if len(outliers) >= PERSISTENT_ROUNDS:
            # The times of other proposers may have changed, too.
            factor = median(self._factors[name]) * median(outliers)
            for one in self._factors:
                self._invalidate(one)
            self._factors[name] = deque([factor], maxlen=WINDOW_ROUNDS)
            self._refresh(name)
        return True

    def _invalidate(self, name: str) -> None:
        """Reduce all that was learned of `name` to the weight of one round."""
        self._factors[name] = deque([median_low(self._factors[name])], maxlen=WINDOW_ROUNDS)
        self._outliers[name].clear()
        self._ratios[name].clear()
        self._refresh(name)

    def _refresh(self, name: str) -> None:
        """Recompute the times: measured for depths used often, else the scaled table."""
        # The lower median, because a single slow round is no evidence.
        factor = median_low(self._factors[name])
        times = [time * factor for time in self._tables[name]]
        for depth, ratios in self._ratios[name].items():
            if len(ratios) >= MIN_ROUNDS:
                times[depth] = median(ratios)
        self._times[name] = times


def _differ(one: float, other: float) -> bool:
    return not 1 / CHANGE_FACTOR < one / other < CHANGE_FACTOR


def interpolated(table: Mapping[int, float], at: int) -> float:
    """The value of a table of two entries or more, by linear interpolation and extrapolation."""
    known = sorted(table)
    right = min(max(bisect_left(known, at), 1), len(known) - 1)
    low, high = known[right - 1], known[right]
    slope = (table[high] - table[low]) / (high - low)
    return table[low] + slope * (at - low)


def context_bucket(context: int) -> int:
    """`context` rounded up to a power of two, at least 256 tokens."""
    return max(MIN_CONTEXT, 1 << (context - 1).bit_length()) if context > 0 else MIN_CONTEXT


@final
class CostStore:
    """One file per key and context length; a key is a model, its proposers and the machine.

    Costs that cannot be read are measured again; costs that cannot be written are not stored. The
    default folder is `speculate` in the user's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def load(self, key: str, context: int) -> Costs | None:
        """The costs stored under `key` at this context length, or `None`."""
        path = self._path(key, context)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            forward = {int(rows): float(seconds) for rows, seconds in entry["forward"].items()}
            draft = {name: float(seconds) for name, seconds in entry["draft"].items()}
            return check_costs(Costs(int(entry["context"]), forward, draft))
        except FileNotFoundError:
            return None
        except Exception:
            _logger.warning("ignored the costs in %s, which cannot be read", path)
            return None

    def save(self, key: str, costs: Costs) -> None:
        """Store measured costs under `key`."""
        path = self._path(key, costs.context)
        beside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"key": key, **attrs.asdict(costs)}), encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            _logger.info("measured costs are not stored: %s", error)
            with suppress(OSError):
                beside.unlink()

    def _path(self, key: str, context: int) -> Path:
        # Imported late, because only a strategy that stores costs needs them.
        import hashlib

        import platformdirs

        folder = self._folder or platformdirs.user_cache_path("speculate", appauthor=False)
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return folder / "costs" / f"{name}-{context_bucket(context)}.json"


def check_costs(costs: Costs) -> Costs:
    """Return the costs, or raise `OptionError` if a time is missing or implausible."""
    rows, seconds = list(costs.forward), [*costs.forward.values(), *costs.draft.values()]
    if 1 not in rows or len(rows) < 2 or min(rows) < 1:
        raise OptionError(f"costs need the times of 1 row and of more rows, got those of {rows}")
    plausible = all(0 <= time < MAX_PLAUSIBLE_SECONDS for time in seconds)
    if not plausible or 0 in costs.forward.values():
        raise OptionError(f"costs must be times in seconds, above 0 for a forward; got {seconds}")
    return costs
