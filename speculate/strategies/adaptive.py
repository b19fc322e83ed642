"""`Adaptive`: the proposer and depth with the highest expected speedup, round by round."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import accumulate
from operator import truediv
from pathlib import Path
from typing import Final, Literal, final

import attrs

from speculate.protocols import Costs, Plan, Proposer, Round
from speculate.strategies.acceptance_rates import (
    DECAY_INTERVAL_TOKENS,
    ProposerEstimate,
    share_priors,
)
from speculate.strategies.fixed import check_proposer
from speculate.strategies.round_times import CostStore, RoundTimes, check_costs, context_bucket
from speculate.validation import refuse, validated_choice, validated_flag

MAX_DEPTH: Final = 12
"""Most tokens of a draft. Deeper drafts pay only for copies of long passages."""

OPTIMISM_SIGMAS: Final = 0.5
"""Standard deviations added to an acceptance rate when exploring. More explores more."""

RETRY_AFTER_ROUNDS: Final = 400
"""Rounds without a proposer after which it is explored again, whatever its acceptance rate."""

CATCH_UP_HORIZON_TOKENS: Final = 400
"""Tokens within which feeding a backlog has to pay."""

PROBE_MIN_TOKENS: Final = 64
"""Remaining tokens from which measuring the costs first is worthwhile."""

EXPLORATION_SHARE: Final = 1 / 300
"""Fraction of the decoding time that exploration may cost."""

INITIAL_BALANCE_STEPS: Final = 1.0
"""Exploration budget at the start, in plain rounds."""

MAX_BALANCE_STEPS: Final = 3.0
"""Largest exploration budget that can accumulate, in plain rounds."""

LOOKAHEAD_LOSS: Final = 0.03
"""Extra time of a plain round without lookahead, in plain rounds.

Asking a lookup that has no match yet prevents the launch of the next forward.
"""

_logger = logging.getLogger(__name__)

Availability = tuple[ProposerEstimate, tuple[int, int], float]
"""A proposer that can draft now: estimate, (bucket, max depth), catch-up time in plain rounds."""


@final
@attrs.frozen
class Candidate:
    """A possible next round."""

    estimate: ProposerEstimate | None  # the proposer that would draft; `None` for a plain round
    depth: int
    tokens: float  # expected number of emitted tokens
    time: float  # expected duration, in plain rounds

    @property
    def rate(self) -> float:
        """Expected speedup over plain decoding, in tokens per plain round."""
        return self.tokens / self.time

    def with_catch_up(self, time: float, horizon: int) -> Candidate:
        """The candidate with `time` plain rounds of catching up, spread over `horizon` tokens."""
        return attrs.evolve(self, time=self.time + time * self.tokens / horizon) if time else self


PLAIN_ROUND: Final = Candidate(None, 0, 1.0, 1.0)
"""A round without a draft."""


def fastest(
    estimate: ProposerEstimate, tokens: Sequence[float], times: Sequence[float]
) -> Candidate:
    """The draft with the most tokens per unit of time; `PLAIN_ROUND` if there is none.

    `tokens` and `times` are expected of rounds with 0, 1, 2, ... drafts, in plain rounds.
    """
    rates = list(map(truediv, tokens, times))
    rates[0] = 0.0
    depth = rates.index(max(rates))
    return Candidate(estimate, depth, tokens[depth], times[depth]) if depth else PLAIN_ROUND


@final
class ExplorationBudget:
    """The time that exploration may cost, in plain rounds.

    Every round adds to it. Exploring a candidate spends the loss that is expected of it, and is
    corrected once its emitted tokens are known, so that a disappointing result reduces further
    exploration.
    """

    def __init__(self) -> None:
        self.balance: float = INITIAL_BALANCE_STEPS  # negative if it lost more than expected
        self._explored: tuple[Candidate, Candidate] | None = None

    def begin(self) -> None:
        """Start a sequence. The result of an exploration in the last one is not awaited."""
        self._explored = None

    def accrue(self, time: float) -> None:
        """Add the share of a round that takes `time` plain rounds."""
        self._add(EXPLORATION_SHARE * time)

    def spend(self, candidate: Candidate, price: float, best: Candidate) -> bool:
        """Pay for exploring a candidate instead of the best one; `False` if that is too much."""
        if price > self.balance:
            return False
        self.balance -= price
        self._explored = candidate, best
        return True

    def observe(self, round: Round) -> None:
        """Correct the balance by the difference between emitted and expected tokens."""
        if self._explored is None:
            return
        explored, best = self._explored
        name = explored.estimate.name if explored.estimate else None
        # A plan may be made before the previous round is observed, if that round is plain.
        if round.planned_proposer != name or round.planned != explored.depth:
            return
        self._explored = None
        if round.truncated:
            return
        won = round.emitted - explored.tokens
        if explored.estimate is best.estimate:
            # One draft more: earlier mistakes would have been made without it, too.
            won = max(0, round.accepted - best.depth) - (explored.tokens - best.tokens)
        self._add(won / best.rate)

    def _add(self, time: float) -> None:
        self.balance = min(self.balance + time, MAX_BALANCE_STEPS)


@final
class Adaptive:
    """Picks the proposer and depth with the highest expected speedup in each round, or none.

    A round with `k` drafts is expected to emit `1 + S_1 + ... + S_k` tokens, where `S_j` is the
    probability that the first `j` drafts are all accepted, and to take as long as such rounds
    took before. The round with the most tokens per unit of time is chosen, plain decoding
    included. The probabilities are learned from every draft that was compared with the
    sequence, for lookups also in rounds in which others drafted. The times are measured once
    and kept current. A third of a percent of the time is spent on exploration. The first round
    of a sequence is plain, so that the first token is not delayed.

    A proposer that raises is not used for the rest of the sequence, after one warning in the
    log `speculate`.

    Args:
        proposers: The proposers to choose from. Their names must differ.
        clock: `"wall"` to use measured times; `"fixed"` to use a table alone, so that the same
            request always leads to the same choices.
        costs: The table to start from, in seconds. By default, costs measured before with this
            model, its proposers, machine and version of MLX; otherwise they are measured after
            the first token of the first sequence that is long enough, in about 25 forwards.
        measure: Whether to measure costs; if not, the table starts from defaults.
        cache_folder: Where measured costs are stored; by default the user's cache folder.

    Raises:
        OptionError: An option is invalid.
    """

    def __init__(
        self,
        *proposers: Proposer,
        clock: Literal["wall", "fixed"] = "wall",
        costs: Costs | None = None,
        measure: bool = True,
        cache_folder: Path | None = None,
    ) -> None:
        validated_choice("clock", clock, ("wall", "fixed"))
        validated_flag("measure", measure)
        if not isinstance(cache_folder, Path | None):
            refuse("cache_folder", "a Path or None", cache_folder)
        if not isinstance(costs, Costs | None):
            refuse("costs", "Costs or None", costs)
        if costs is not None:
            check_costs(costs)
        for proposer in proposers:
            check_proposer(proposer)
        self._proposers = proposers
        self._estimates = [ProposerEstimate(proposer) for proposer in proposers]
        self._free_estimates = [estimate for estimate in self._estimates if estimate.free]
        self._free = {estimate.name: estimate.free for estimate in self._estimates}
        self._fixed = clock == "fixed"
        self._measures = measure and costs is None and not self._fixed and bool(proposers)
        self._store = CostStore(cache_folder)
        self._key: str | None = None
        self._known: dict[tuple[str | None, int], Costs] = {}
        self._times = RoundTimes(costs, self._free, MAX_DEPTH)
        self._budget = ExplorationBudget()
        self._rate = 1.0
        self._plans = 0
        self._first = False  # whether the next round emits the first token of a sequence
        self._plain_until = 0  # number of the plan up to which only lookups may draft
        self._backlogs: dict[str, int] = {}
        # The best candidates, and the survival and times that they were computed from.
        self._candidates: dict[
            tuple[str, tuple[int, int], float], tuple[Sequence[float], Sequence[float], Candidate]
        ] = {}

    def __repr__(self) -> str:
        names = ", ".join(proposer.name for proposer in self._proposers) or "no proposers"
        clock = "fixed" if self._fixed else "wall"
        baseline = self.plain_seconds
        known = f"plain round {baseline * 1e3:.3g} ms" if baseline else "no round timed"
        return f"<Adaptive: {names}; {clock} clock, {known}>"

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._proposers

    @property
    def plain_seconds(self) -> float:
        """Current duration of a plain round, in seconds; 0 before any was timed."""
        return self._times.baseline_seconds

    def plan(self, remaining: int | None, /) -> Plan:
        self._plans += 1
        plain = self.plain_seconds or None
        if self._first:
            self._first = False
            return Plan(predicted_speedup=1.0, baseline_seconds=plain)
        if not self._fixed and self._times.needs_baseline(self._rate):
            return Plan()
        # Plain rounds teach little, so that the decision need not be made again for each.
        rests = self._plans < self._plain_until and not self._available(1, self._free_estimates)
        horizon = CATCH_UP_HORIZON_TOKENS
        if remaining is not None:
            horizon = min(horizon, remaining)
        best = PLAIN_ROUND if rests else self._choose(horizon)
        self._rate = best.rate
        self._budget.accrue(best.time)
        if best.estimate is not None:
            proposer = best.estimate.proposer
            return Plan(proposer, best.depth, predicted_speedup=best.rate, baseline_seconds=plain)
        if not rests and horizon > DECAY_INTERVAL_TOKENS:
            self._plain_until = self._plans + DECAY_INTERVAL_TOKENS
        return Plan(predicted_speedup=1.0, baseline_seconds=plain)

    def observe(self, round: Round, /) -> None:
        for estimate in self._estimates:
            try:
                estimate.observe(round)
            except Exception as error:
                self.failed(estimate.proposer, error)
        if round.planned_proposer is not None:
            self._plain_until = 0
            share_priors(self._estimates)
        self._budget.observe(round)
        if self._fixed or round.truncated or not 0.0 < round.seconds < math.inf:
            return
        if round.proposer is not None:
            backlog = self._backlogs.get(round.proposer, 0)
            self._times.observe(round.proposer, round.drafted, round.seconds, backlog)
            return
        # Whether the device was busy throughout, also while the caller was.
        busy = round.planned_proposer is None and round.overlapped_seconds < round.seconds
        # No earlier round overlaps with the first: its time counts only where no other is known.
        if busy and (round.index or not self.plain_seconds):
            self._times.observe_plain(round.seconds + round.overlapped_seconds)

    def needs_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        if not self._measures:
            return False
        self._key, place = key, (key, context_bucket(context))
        if place in self._known:
            return False
        found = None if key is None else self._store.load(key, context)
        if found is None:
            return remaining is None or remaining >= PROBE_MIN_TOKENS
        self._known = {place: found}
        self._times = RoundTimes(found, self._free, MAX_DEPTH, fresh=False)
        return False

    def set_costs(self, costs: Costs, /) -> None:
        self._known = {(self._key, context_bucket(costs.context)): costs}
        self._times = RoundTimes(costs, self._free, MAX_DEPTH)
        if self._key is not None:
            self._store.save(self._key, costs)

    def begin(self) -> None:
        self._first = True
        self._plain_until = 0
        self._budget.begin()
        for estimate in self._estimates:
            estimate.begin()
        share_priors(self._estimates)

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        _logger.warning(
            "proposer '%s' raised %r and is not used for the rest of this sequence",
            proposer.name,
            error,
            exc_info=error,
        )
        for estimate in self._estimates:
            if estimate.proposer is proposer:
                estimate.failed = True

    def _choose(self, horizon: int) -> Candidate:
        """The best candidate, or one worth exploring, with `horizon` tokens still to be emitted."""
        best = hope = PLAIN_ROUND
        max_depth = min(MAX_DEPTH, horizon - 1)
        available = self._available(max_depth, self._estimates)
        # Optimistic rates matter only if exploration can be paid for.
        affordable = self._budget.balance > 0.0
        for estimate, forecast, catch_up in available:
            found = self._best(estimate, forecast)
            if found.rate > best.rate and not (catch_up and estimate.is_recovering()):
                best = max(best, found.with_catch_up(catch_up, horizon), key=_rate)
            if affordable:
                optimistic = self._best(estimate, forecast, OPTIMISM_SIGMAS)
                if optimistic.rate > hope.rate:
                    hope = max(hope, optimistic.with_catch_up(catch_up, horizon), key=_rate)
        exploration = self._explore(available, best, hope) if affordable else None
        if exploration is None and best.estimate is None:
            blind = [self._blind_candidate(one, max_depth) for one in self._estimates]
            return max(blind, key=_rate, default=PLAIN_ROUND)
        return exploration or best

    def _best(
        self, estimate: ProposerEstimate, forecast: tuple[int, int], optimism: float = 0.0
    ) -> Candidate:
        """The best candidate of a proposer; `optimism` as in `AcceptanceCurve.survival`."""
        survival, times = estimate.survival(*forecast, optimism), self._times.of(estimate.name)
        place = (estimate.name, forecast, optimism)
        known = self._candidates.get(place)
        # Survival and times are new objects if they changed.
        if known is None or known[0] is not survival or known[1] is not times:
            tokens = list(accumulate(survival, initial=1.0))
            known = self._candidates[place] = survival, times, fastest(estimate, tokens, times)
        return known[2]

    def _blind_candidate(self, estimate: ProposerEstimate, max_depth: int) -> Candidate:
        """A plain round, or one that asks a lookup that may find a match at the last token."""
        onset = estimate.onset.probability
        if not onset or estimate.failed:
            return PLAIN_ROUND
        survival = estimate.survival(estimate.onset.bucket, max_depth)
        tokens = [1.0 + onset * drafted for drafted in accumulate(survival, initial=0.0)]
        times = self._times.of(estimate.name)
        times = [1.0 + LOOKAHEAD_LOSS + onset * (time - 1.0) for time in times]
        return max(PLAIN_ROUND, fastest(estimate, tokens, times), key=_rate)

    def _explore(
        self, available: Sequence[Availability], best: Candidate, hope: Candidate
    ) -> Candidate | None:
        """A candidate that may beat the best one, if the budget covers its expected loss."""
        for estimate, forecast, catch_up in available:
            # One more draft is the cheapest way to find out whether a proposer is better.
            depth = 1 + (best.depth if estimate is best.estimate else 0)
            hoped = estimate is hope.estimate and depth <= hope.depth
            idle = self._times.idle_rounds(estimate.name)
            unknown = idle >= RETRY_AFTER_ROUNDS or (
                hope.estimate is None and self._all_unknown(estimate)
            )
            if hoped or (estimate is not best.estimate and unknown):
                tokens = 1.0 + sum(estimate.survival(forecast[0], depth))
                time = self._times.of(estimate.name)[depth]
                loss = catch_up + time - tokens / best.rate
                # A proposer that was slow may have become faster: after long enough the price
                # is capped so that it can be paid.
                price = loss if idle < RETRY_AFTER_ROUNDS * loss else min(loss, MAX_BALANCE_STEPS)
                candidate = Candidate(estimate, depth, tokens, time)
                if self._budget.spend(candidate, price, best):
                    return candidate
        return None

    def _all_unknown(self, estimate: ProposerEstimate) -> bool:
        """Whether it has little evidence, and no other proposer has a rate to infer its own."""
        others = (one for one in self._estimates if one is not estimate)
        return estimate.has_little_evidence and all(one.first_draft_rate is None for one in others)

    def _available(
        self, max_depth: int, estimates: Sequence[ProposerEstimate]
    ) -> list[Availability]:
        """The proposers that can draft now."""
        found = []
        for estimate in estimates:
            try:
                forecast, backlog = estimate.forecast(max_depth), estimate.backlog()
                catch_up = self._times.catch_up_time(estimate.name, backlog)
            except Exception as error:
                self.failed(estimate.proposer, error)
            else:
                self._backlogs[estimate.name] = backlog
                if forecast[1]:
                    found.append((estimate, forecast, catch_up))
        return found


def _rate(candidate: Candidate) -> float:
    return candidate.rate
