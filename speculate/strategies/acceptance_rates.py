"""How many drafts of a proposer are likely to be accepted, learned from rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from speculate.protocols import (
    Forecast,
    Proposer,
    Round,
    SupportsBacklog,
    SupportsForecast,
    SupportsFreeDrafts,
)
from speculate.strategies.fixed import checked_backlog, checked_forecast, checked_scores

PRIOR_ACCEPTANCE: Final = 0.4
"""Assumed acceptance rate of a first draft.

Published heads reach more, but a rate that is too low costs a round or two, and one that is too
high costs more.
"""

PRIOR_CORRELATION: Final = 0.7
"""Weight of other proposers' acceptance rate in the prior of one without evidence, 0 to 1.

Where one proposer drafts badly, others usually do.
"""

BUCKET_PRIOR_WEIGHT: Final = 2.0
"""Weight of the prior from the match length, in drafts, against first drafts of all buckets.

Where passages recur, short matches are better than their length suggests.
"""

MIN_DRAFTS_SEEN: Final = 3
"""Drafts in a sequence below which bad luck may explain a low acceptance rate."""

CARRY_OVER_WEIGHT: Final = 4.0
"""Cap on evidence carried over from earlier sequences, in comparisons per position."""

SLOW_DECAY: Final = 0.98
"""Decay of older evidence per new comparison at a position. Lower adapts faster."""

FAST_DECAY: Final = 0.85
"""Decay of the fast average that detects a change of regime, per comparison."""

CHANGE_THRESHOLD: Final = 0.4
"""Difference between fast and slow acceptance rate at which a position is learned anew."""

RESET_WEIGHT: Final = 6.0
"""Weight of the fast average after a change of regime, in comparisons."""

MEMORY_TOKENS: Final = 400.0
"""Tokens after which evidence decays to 1/e, even without new comparisons."""

PRIOR_WEIGHT: Final = 3.0
"""Weight of the prior of a first draft, in comparisons."""

NEIGHBOUR_WEIGHT: Final = 10.0
"""Weight of the previous position in the rate of a position, in comparisons."""

DEPTH_DECAY: Final = 0.95
"""Acceptance rate of a position without evidence, relative to the previous one; not in copies."""

DECAY_INTERVAL_TOKENS: Final = 8
"""Tokens between two decays of the evidence.

Rates change by a fiftieth in that time, so they need not be computed for every round.
"""

MIN_COPY_END_RATE: Final = 0.08
"""Lowest rate at which a copy is assumed to end at a position without evidence."""

ONSET_LEARNING_RATE: Final = 0.05
"""Weight of the latest position in the probability of a match onset."""

MIN_ONSET_AFTER_COPY: Final = 0.1
"""Lowest probability of a match onset right after a copy ended.

After an edited passage, the output usually returns to what it was copying.
"""


@final
class AcceptanceCurve:
    """Probability that the first 1, 2, ... drafts of a proposer are all accepted.

    Keeps for each position the acceptance rate of drafts that were right up to there. A draft
    is no evidence for positions after its first mistake or after its end. A position with little
    evidence is assumed to be like the previous one. When the latest drafts no longer fit the
    learned rate, the rate is learned anew.

    If a draft is a copy, each right token makes the match one token longer, and longer matches
    are more likely to continue: with little data, a 1/n miss rate is assumed after an n-token
    match, but at least `MIN_COPY_END_RATE`.
    """

    def __init__(self, prior: float, match_length: int = 0) -> None:
        self.prior = prior  # acceptance rate of a first draft without evidence
        self._match_length = match_length  # of the draft's copy; 0 if it is none
        self._right: list[float] = []
        self._compared: list[float] = []
        self._fast: list[float] = []
        self._passed = 0  # tokens since the last decay
        # Results until the evidence changes, by depth, optimism and prior.
        self._survival: dict[tuple[int, float, float], Sequence[float]] = {}

    @property
    def evidence(self) -> float:
        """Number of first drafts that were compared, after decay."""
        self._decay(DECAY_INTERVAL_TOKENS)
        return self._compared[0] if self._compared else 0.0

    def observe(self, compared: int, right: int) -> None:
        """Learn from a draft of which `compared` tokens were compared, and `right` were right."""
        for position in range(min(right + 1, compared)):
            self.update(position, 1, int(position < right))

    def update(self, position: int, compared: int, right: int) -> None:
        """Learn from `compared` drafts that were right so far; `right` also are at `position`."""
        if not compared:
            return
        self._decay()
        while position >= len(self._compared):
            self._compared.append(0.0)
            self._right.append(0.0)
            self._fast.append(right / compared)
        keep = SLOW_DECAY**compared
        total = self._compared[position] * keep + compared
        hits = self._right[position] * keep + right
        fast = self._fast[position]
        fast += (1.0 - FAST_DECAY**compared) * (right / compared - fast)
        if total > RESET_WEIGHT and abs(fast - hits / total) > CHANGE_THRESHOLD:
            total, hits = RESET_WEIGHT, RESET_WEIGHT * fast
        self._compared[position], self._right[position] = total, hits
        self._fast[position] = fast
        self._survival.clear()

    def advance(self, tokens: int) -> None:
        """The sequence grew by `tokens`."""
        # Decayed lazily: every curve is advanced each round, and few are read before the next.
        self._passed += tokens

    def discount(self, most: float) -> None:
        """Limit the evidence at each position to `most` comparisons."""
        self._decay()
        for position, compared in enumerate(self._compared):
            if compared > most:
                self._right[position] *= most / compared
                self._compared[position] = most
        self._survival.clear()

    def survival(self, depth: int, optimism: float = 0.0) -> Sequence[float]:
        """`S_1 ... S_depth`: probabilities that so many leading drafts are all accepted.

        `optimism` is added to the rate of each position, in standard deviations. Returns the same
        object until the probabilities change.
        """
        self._decay(DECAY_INTERVAL_TOKENS)
        key = (depth, optimism, self.prior)
        if key not in self._survival:
            self._survival[key] = self._computed(depth, optimism)
        return self._survival[key]

    def _decay(self, interval: int = 1) -> None:
        """Decay the evidence if at least `interval` tokens have passed."""
        if self._passed < interval:
            return
        keep = math.exp(-self._passed / MEMORY_TOKENS)
        self._right = [right * keep for right in self._right]
        self._compared = [compared * keep for compared in self._compared]
        self._passed = 0
        self._survival.clear()

    def _computed(self, depth: int, optimism: float) -> Sequence[float]:
        survival: list[float] = []
        product, rate, weight = 1.0, self.prior, PRIOR_WEIGHT
        known, match_length = len(self._compared), self._match_length
        for position in range(depth):
            right, compared = weight * rate, weight
            if position < known:
                right += self._right[position]
                compared += self._compared[position]
            rate = hopeful = right / compared
            if optimism and rate < 1.0:
                hopeful += optimism * math.sqrt(rate * (1.0 - rate) / (compared + 1.0))
                hopeful = 1.0 if hopeful > 1.0 else hopeful
            product *= hopeful
            survival.append(product)
            if match_length:
                wrong = (1.0 - rate) * match_length / (match_length + 1)
                rate = 1.0 - (wrong if wrong > MIN_COPY_END_RATE else MIN_COPY_END_RATE)
                match_length += 1
            else:
                rate *= DEPTH_DECAY
            weight = NEIGHBOUR_WEIGHT
        return survival


@final
class MatchOnset:
    """How often a lookup finds a match at a position after one without a match.

    A plain round is launched before the last token is read. A match that begins at that token is
    then found too late, unless the lookup is asked without a forecast.
    """

    def __init__(self) -> None:
        self.probability: float = 0.0  # of a match at the next position if there is none now
        self.bucket: int = 0  # kind of the latest draft at a match onset; see `Forecast`
        self._found = False

    def on_copy_end(self) -> None:
        """A draft was accepted in part."""
        self.probability = max(self.probability, MIN_ONSET_AFTER_COPY)

    def observe(self, forecast: Forecast, *, plain: bool) -> None:
        """Learn from the forecast after all known tokens; `plain` if only one token is new."""
        found = forecast.length > 0
        if plain and not self._found:
            self.probability += ONSET_LEARNING_RATE * (found - self.probability)
            if found:
                self.bucket = forecast.bucket
        self._found = found


@final
class ProposerEstimate:
    """A proposer, and the acceptance rates learned of it."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.name: str = proposer.name
        self.failed: bool = False  # whether it raised in this sequence; it is then not asked again
        self._forecasts = proposer if isinstance(proposer, SupportsForecast) else None
        self._feeds_backlog = proposer if isinstance(proposer, SupportsBacklog) else None
        self.free: bool = isinstance(proposer, SupportsFreeDrafts) and proposer.free
        self._curves: dict[int, AcceptanceCurve] = {}
        self._all_buckets = AcceptanceCurve(PRIOR_ACCEPTANCE)
        self.onset: MatchOnset = MatchOnset()
        self._last_rate = 1.0
        self._drafts = 0

    def begin(self) -> None:
        """Start a sequence: activate the proposer again, and discount earlier evidence."""
        self.failed = False
        self._last_rate, self._drafts = 1.0, 0
        self._curve(0).prior = PRIOR_ACCEPTANCE
        # How a sequence returns to earlier passages does not carry over to another.
        self._all_buckets, self.onset = AcceptanceCurve(PRIOR_ACCEPTANCE), MatchOnset()
        for curve in self._curves.values():
            curve.discount(CARRY_OVER_WEIGHT)

    def forecast(self, max_depth: int) -> tuple[int, int]:
        """Bucket of the draft that it would make now, and its maximum depth; 0 for no draft."""
        if self.failed:
            return 0, 0
        if self._forecasts is None:
            return 0, max_depth
        forecast = checked_forecast(self.proposer, self._forecasts.forecast())
        return forecast.bucket, min(max_depth, forecast.length)

    def backlog(self) -> int:
        """Number of tokens to feed before its next draft."""
        if self.failed or self._feeds_backlog is None:
            return 0
        return checked_backlog(self.proposer, self._feeds_backlog.backlog())

    def survival(self, bucket: int, depth: int, optimism: float = 0.0) -> Sequence[float]:
        """`AcceptanceCurve.survival` of drafts of one bucket."""
        curve = self._curve(bucket)
        if self._forecasts is not None:
            # The longer the match, the more likely it continues.
            own = 1.0 - 1.0 / bucket if bucket > 1 else PRIOR_ACCEPTANCE
            evidence, rate = self._all_buckets.evidence, self._all_buckets.survival(1)[0]
            total = BUCKET_PRIOR_WEIGHT + evidence
            curve.prior = (BUCKET_PRIOR_WEIGHT * own + evidence * rate) / total
        return curve.survival(depth, optimism)

    def is_recovering(self) -> bool:
        """Whether its rate rose since its last draft, only because evidence decayed."""
        return self._curve(0).survival(1)[0] > self._last_rate

    @property
    def has_little_evidence(self) -> bool:
        """Whether it cannot forecast, and drafted only a few times in this sequence."""
        return self._forecasts is None and self._drafts < MIN_DRAFTS_SEEN

    @property
    def has_no_evidence(self) -> bool:
        """Whether it cannot forecast, and none of its drafts was compared yet."""
        return self._forecasts is None and not self._curve(0).evidence

    @property
    def first_draft_rate(self) -> float | None:
        """Acceptance rate of its first draft; `None` if it forecasts or has no evidence."""
        known = self._forecasts is None and not self.has_no_evidence
        return self._curve(0).survival(1)[0] if known else None

    def set_prior(self, rate: float) -> None:
        """Derive its prior from the acceptance rate of other proposers, if it has no evidence."""
        if self.has_no_evidence:
            # Within a sequence the prior only falls: the evidence of the others decays.
            prior = PRIOR_ACCEPTANCE + PRIOR_CORRELATION * (rate - PRIOR_ACCEPTANCE)
            self._curve(0).prior = min(prior, self._curve(0).prior)

    def observe(self, round: Round) -> None:
        """Learn from a round, regardless of the proposer that drafted."""
        for curve in (*self._curves.values(), self._all_buckets):
            curve.advance(round.emitted)
        if self.failed:
            return
        if self._forecasts is not None:
            # It scores every position, including those where others drafted.
            for found in checked_scores(self.proposer, self._forecasts.scores()):
                self._curve(found.bucket).update(found.position, found.compared, found.right)
                if found.position == 0:
                    self._all_buckets.update(0, found.compared, found.right)
            forecast = checked_forecast(self.proposer, self._forecasts.forecast())
            self.onset.observe(forecast, plain=not round.drafted)
            if round.proposer == self.name and 0 < round.accepted < round.drafted:
                self.onset.on_copy_end()
        elif round.proposer == self.name:
            # If the sequence ended within the draft, the rest of it was not compared.
            whole = round.emitted > round.accepted
            self._curve(0).observe(round.drafted if whole else round.accepted, round.accepted)
            self._drafts += 1
            self._last_rate = self._curve(0).survival(1)[0]
        elif round.planned_proposer == self.name and not round.truncated:
            # An empty draft counts as a wrong one.
            self._curve(0).observe(1, 0)
            self._drafts += 1

    def _curve(self, bucket: int) -> AcceptanceCurve:
        if bucket not in self._curves:
            self._curves[bucket] = AcceptanceCurve(PRIOR_ACCEPTANCE, match_length=bucket)
        return self._curves[bucket]


def share_priors(estimates: Sequence[ProposerEstimate]) -> None:
    """Derive the priors of proposers without evidence from the rates of the others."""
    unknown = [one for one in estimates if one.has_no_evidence]
    rates = [one.first_draft_rate for one in estimates] if unknown else []
    known = [rate for rate in rates if rate is not None]
    for estimate in unknown if known else ():
        estimate.set_prior(sum(known) / len(known))
