"""The expected speedup of a round, estimated for each proposer and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs

from speculate.protocols import CatchesUp, Foresees, Proposer, Round
from speculate.strategies.acceptance import AcceptanceCurve, MatchOnset
from speculate.strategies.checking import checked_behind, checked_hindsight, checked_outlook

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
"""Weight of the prior from the match length, in drafts, against first drafts of all kinds.

Where passages recur, short matches are better than their length suggests.
"""

LOOKAHEAD_LOSS: Final = 0.03
"""Extra time of a plain round without lookahead, in plain rounds.

Asking a lookup that has no match yet prevents the launch of the next forward.
"""

MIN_DRAFTS_SEEN: Final = 3
"""Drafts in a sequence below which bad luck may explain a low acceptance rate."""

CARRY_OVER_WEIGHT: Final = 4.0
"""Cap on evidence carried over from earlier sequences, in comparisons per position."""

Forecast = tuple[int, int]
"""Kind of the draft that a proposer would make now, and its maximum depth; 0 for no draft."""


@final
@attrs.frozen
class Candidate:
    """A possible next round.

    Attributes:
        estimate: The proposer that would draft; `None` for a plain round.
        depth: Tokens to draft.
        tokens: Expected number of emitted tokens.
        time: Expected duration, in plain rounds.
    """

    estimate: ProposerEstimate | None
    depth: int
    tokens: float
    time: float

    @property
    def rate(self) -> float:
        """Expected speedup over plain decoding, in tokens per plain round."""
        return self.tokens / self.time

    def with_catch_up(self, time: float, horizon: int) -> Candidate:
        """The candidate including a catch-up time, spread over the next `horizon` tokens.

        Args:
            time: Time to feed the backlog, in plain rounds.
            horizon: Tokens over which catching up has to pay.
        """
        if not time:
            return self
        return Candidate(
            self.estimate, self.depth, self.tokens, self.time + time * self.tokens / horizon
        )


PLAIN_ROUND: Final = Candidate(None, 0, 1.0, 1.0)
"""A round without a draft."""


@final
class ProposerEstimate:
    """A proposer, and the acceptance rates learned of it.

    Args:
        proposer: The proposer.

    Attributes:
        proposer: The proposer.
        name: Its name.
        failed: Whether it raised in this sequence; it is then not asked again.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.name: str = proposer.name
        self.failed: bool = False
        self._foresees = proposer if isinstance(proposer, Foresees) else None
        self._catches_up = proposer if isinstance(proposer, CatchesUp) else None
        self._curves: dict[int, AcceptanceCurve] = {}
        self._all_kinds = AcceptanceCurve(PRIOR_ACCEPTANCE)
        self._onset = MatchOnset()
        self._last_rate = 1.0
        self._drafts = 0
        # The best candidate for each forecast and optimism, and the survival and times that it
        # was computed from.
        self._best: dict[
            tuple[Forecast, float], tuple[Sequence[float], Sequence[float], Candidate]
        ] = {}

    def begin(self) -> None:
        """Start a sequence: activate the proposer again, and discount earlier evidence."""
        self.failed = False
        self._last_rate, self._drafts = 1.0, 0
        self._curve(0).prior = PRIOR_ACCEPTANCE
        # How a sequence returns to earlier passages does not carry over to another.
        self._all_kinds, self._onset = AcceptanceCurve(PRIOR_ACCEPTANCE), MatchOnset()
        for curve in self._curves.values():
            curve.discount(CARRY_OVER_WEIGHT)

    @property
    def free(self) -> bool:
        """Whether it drafts on the host, at no cost."""
        return self._foresees is not None

    def forecast(self, max_depth: int) -> Forecast:
        """The draft that it would make now."""
        if self.failed:
            return 0, 0
        if self._foresees is None:
            return 0, max_depth
        outlook = checked_outlook(self.proposer, self._foresees.outlook())
        return outlook.kind, min(max_depth, outlook.length)

    def backlog(self) -> int:
        """Number of tokens to feed before its next draft."""
        if self.failed or self._catches_up is None:
            return 0
        return checked_behind(self.proposer, self._catches_up.behind())

    def is_recovering(self) -> bool:
        """Whether its rate rose since its last draft, only because evidence decayed."""
        return self._curve(0).survival(1)[0] > self._last_rate

    def best(self, times: Sequence[float], forecast: Forecast, optimism: float = 0.0) -> Candidate:
        """The depth with the most tokens per unit of time.

        Args:
            times: Durations of rounds with 0, 1, 2, ... drafts, in plain rounds.
            forecast: From `forecast`.
            optimism: See `AcceptanceCurve.survival`.
        """
        kind, max_depth = forecast
        survival = self._curve_with_prior(kind).survival(max_depth, optimism)
        known = self._best.get((forecast, optimism))
        # Both are new objects if they changed.
        if known is not None and known[0] is survival and known[1] is times:
            return known[2]
        tokens, best, most = 1.0, (0, 1.0), 0.0
        for depth, probability in enumerate(survival, 1):
            tokens += probability
            rate = tokens / times[depth]
            if rate > most:
                best, most = (depth, tokens), rate
        candidate = Candidate(self, *best, times[best[0]]) if most else PLAIN_ROUND
        self._best[forecast, optimism] = survival, times, candidate
        return candidate

    def at(self, depth: int, times: Sequence[float], forecast: Forecast) -> Candidate:
        """The candidate at one depth."""
        tokens = 1.0 + sum(self._curve_with_prior(forecast[0]).survival(depth))
        return Candidate(self, depth, tokens, times[depth])

    def blind_candidate(self, times: Sequence[float], max_depth: int) -> Candidate:
        """The best candidate that asks for a draft although none is forecast.

        There may be a match once the last token is read.

        Args:
            times: See `best`.
            max_depth: Most tokens to draft.
        """
        onset = self._onset.probability
        if not onset or self.failed:
            return PLAIN_ROUND
        tokens, best, most = 0.0, (0, 1.0, 1.0), 1.0
        survival = self._curve_with_prior(self._onset.kind).survival(max_depth)
        for depth, probability in enumerate(survival, 1):
            tokens += probability
            found = (
                depth,
                1.0 + onset * tokens,
                1.0 + LOOKAHEAD_LOSS + onset * (times[depth] - 1.0),
            )
            rate = found[1] / found[2]
            if rate > most:
                best, most = found, rate
        return Candidate(self, *best) if best[0] else PLAIN_ROUND

    @property
    def has_no_evidence(self) -> bool:
        """Whether it cannot forecast, and none of its drafts was compared yet."""
        return self._foresees is None and not self._curve(0).evidence

    @property
    def has_little_evidence(self) -> bool:
        """Whether it cannot forecast, and drafted only a few times in this sequence."""
        return self._foresees is None and self._drafts < MIN_DRAFTS_SEEN

    @property
    def first_draft_rate(self) -> float | None:
        """Acceptance rate of its first draft; `None` if it forecasts or has no evidence."""
        known = self._foresees is None and not self.has_no_evidence
        return self._curve(0).survival(1)[0] if known else None

    def set_prior(self, rate: float) -> None:
        """Derive its prior from the acceptance rate of other proposers, if it has no evidence."""
        if self.has_no_evidence:
            # Within a sequence the prior only falls: the evidence of the others decays.
            prior = PRIOR_ACCEPTANCE + PRIOR_CORRELATION * (rate - PRIOR_ACCEPTANCE)
            self._curve(0).prior = min(prior, self._curve(0).prior)

    def observe(self, round: Round) -> None:
        """Learn from a round, regardless of the proposer that drafted."""
        for curve in (*self._curves.values(), self._all_kinds):
            curve.advance(round.emitted)
        if self.failed:
            return
        if self._foresees is not None:
            # It scores every position, including those where others drafted.
            for found in checked_hindsight(self.proposer, self._foresees.hindsight()):
                self._curve(found.kind).update(found.position, found.compared, found.right)
                if found.position == 0:
                    self._all_kinds.update(0, found.compared, found.right)
            outlook = checked_outlook(self.proposer, self._foresees.outlook())
            self._onset.observe(outlook, plain=not round.drafted)
            if round.proposer == self.name and 0 < round.accepted < round.drafted:
                self._onset.on_copy_end()
        elif round.proposer == self.name:
            # If the sequence ended within the draft, the rest of it was not compared.
            whole = round.emitted > round.accepted
            compared = round.drafted if whole else round.accepted
            self._curve(0).observe(compared, round.accepted)
            self._drafts += 1
            self._last_rate = self._curve(0).survival(1)[0]
        elif round.asked == self.name and not round.cut:
            # An empty draft counts as a wrong one.
            self._curve(0).observe(1, 0)
            self._drafts += 1

    def _curve(self, kind: int) -> AcceptanceCurve:
        curve = self._curves.get(kind)
        if curve is None:
            curve = self._curves[kind] = AcceptanceCurve(PRIOR_ACCEPTANCE, match_length=kind)
        return curve

    def _curve_with_prior(self, kind: int) -> AcceptanceCurve:
        """The curve of a kind, with a prior from its match length and all other kinds."""
        curve = self._curve(kind)
        if self._foresees is not None:
            # The longer the match, the more likely it continues.
            own = 1.0 - 1.0 / kind if kind > 1 else PRIOR_ACCEPTANCE
            evidence, rate = self._all_kinds.evidence, self._all_kinds.survival(1)[0]
            curve.prior = (BUCKET_PRIOR_WEIGHT * own + evidence * rate) / (
                BUCKET_PRIOR_WEIGHT + evidence
            )
        return curve


def share_priors(estimates: Sequence[ProposerEstimate]) -> None:
    """Derive the priors of proposers without evidence from the rates of the others."""
    unknown = [one for one in estimates if one.has_no_evidence]
    if not unknown:
        return
    rates = [one.first_draft_rate for one in estimates]
    known = [rate for rate in rates if rate is not None]
    for estimate in unknown if known else ():
        estimate.set_prior(sum(known) / len(known))
