"""How much time a strategy may lose to find out whether something else is better."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, final

from speculate.errors import OptionError
from speculate.protocols import Costs, Plan, Proposer, Round
from speculate.strategies.checking import check_proposer
from speculate.strategies.contender import PLAIN, Contender, Offer, share_expectations
from speculate.strategies.cost_store import CostStore, bucket, check_costs
from speculate.strategies.survival import STALE
from speculate.strategies.timing import Timing
from speculate.validation import refuse, validated_choice, validated_flag

SHARE: Final = 1 / 300
"""Part of the time that trials may cost."""

START: Final = 1.0
"""Plain steps that trials may cost before any were earned."""

MOST: Final = 3.0
"""Plain steps that may be saved up for trials."""


@final
class Trials:
    """An account that every round pays into, and that trials are paid from, in plain steps.

    A trial is paid when it is made, as what it is expected to lose, and made up for when its
    tokens are known: what was hoped for in vain is not there for the next one.
    """

    def __init__(self) -> None:
        self._saved = START
        self._made: tuple[Offer, Offer] | None = None

    @property
    def saved(self) -> float:
        """What there is to pay trials from; below 0 where they gave less than was expected."""
        return self._saved

    def begin(self) -> None:
        """Another text begins: what a trial gave in the last one is not told any more."""
        self._made = None

    def earn(self, time: float) -> None:
        """A round takes so long."""
        self._save(SHARE * time)

    def pay(self, trial: Offer, price: float, best: Offer) -> bool:
        """Pay for a trial, if there is enough.

        Args:
            trial: What would be done.
            price: What it is expected to lose.
            best: What would be done otherwise.
        """
        if price > self._saved:
            return False
        self._saved -= price
        self._made = trial, best
        return True

    def observe(self, round: Round) -> None:
        """Make up for a trial that gave fewer tokens than were expected of it, or more."""
        if self._made is None:
            return
        trial, best = self._made
        name = trial.contender.name if trial.contender else None
        # The next plan may be made before its round, where that is plain.
        if round.asked != name or round.planned != trial.depth:
            return
        self._made = None
        if round.cut:
            return
        won = round.emitted - trial.tokens
        if trial.contender is best.contender:
            # One draft more: what was wrong in front of it would have been wrong without it, too.
            won = max(0, round.accepted - best.depth) - (trial.tokens - best.tokens)
        self._save(won / best.rate)

    def _save(self, time: float) -> None:
        self._saved = min(self._saved + time, MOST)


DEEPEST: Final = 12
"""Most tokens of a draft. Deeper ones pay for copies of long passages only."""

OPTIMISM: Final = 0.5
"""Standard deviations by which a trial may hope for more than was seen."""

FORGOTTEN: Final = 400
"""Rounds without a proposer after which it is tried again, whatever was seen of it."""

HORIZON: Final = 400
"""Tokens of text over which it has to pay that a proposer catches up."""

WORTH_MEASURING: Final = 64
"""Tokens to emit for which measuring the costs beforehand is worth while."""

_logger = logging.getLogger(__name__)

Look = tuple[Contender, tuple[int, int], float]
"""Who can draft, what, and the time in which it first takes in what it missed."""


@final
class Adaptive:
    """Picks a proposer and a depth in each round, or nobody.

    A round with `k` drafts is expected to give `1 + S_1 + ... + S_k` tokens, where `S_j` is
    the chance that the first `j` drafts are all right, and to take as long as such rounds
    took. The round with the most tokens per unit of time is made, a plain one included. The
    chances are learned from every draft that was compared with the text, lookups' also in
    rounds where others drafted; the times are measured once and kept current. A part of the
    time, a third of a percent, is spent on trying what may be better than it looks. A text's
    first round is plain, so that its first token waits for nobody.

    A proposer that raises is left alone for the rest of the text, after one warning in the
    log of `speculate`.

    Args:
        proposers: Who may draft. By name they must differ.
        clock: `"wall"` to go by measured times; `"fixed"` to go by a table alone, so that
            the same request is decoded with the same choices every time.
        costs: The table to start from. By default what was measured before with this model,
            its proposers, machine and version of MLX, or else is measured behind the first
            token of the first long enough text: about 25 forwards.
        measure: Whether to measure; without, the table starts from a guess.
        cache_folder: Where measured costs are kept, by default in the user's cache folder.

    Raises:
        OptionError: An option cannot be used.
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
        try:
            costs = costs and check_costs(costs)
        except ValueError as error:
            raise OptionError(str(error)) from None
        for proposer in proposers:
            check_proposer(proposer)
        self._proposers = proposers
        self._contenders = [Contender(proposer) for proposer in proposers]
        self._finders = [contender for contender in self._contenders if contender.free]
        self._free = {contender.name: contender.free for contender in self._contenders}
        self._fixed = clock == "fixed"
        self._measures = measure and costs is None and not self._fixed and bool(proposers)
        self._store = CostStore(cache_folder)
        self._key: str | None = None
        self._known: dict[tuple[str | None, int], Costs] = {}
        self._timing = Timing(costs, self._free, DEEPEST)
        self._trials = Trials()
        self._rate = 1.0
        self._plans = 0
        self._first = False  # the next round gives a text's first token, which waits for no draft
        self._plain_until = 0  # so many plans nobody drafts, unless something is found
        self._behind: dict[str, int] = {}

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._proposers

    @property
    def plain_seconds(self) -> float:
        """Time of a plain round as it is now, in seconds; 0 before any was timed."""
        return self._timing.plain_seconds

    def plan(self, remaining: int | None, /) -> Plan:
        self._plans += 1
        if self._first:
            self._first = False
            return Plan(predicted=1.0, plain_seconds=self.plain_seconds or None)
        if not self._fixed and self._timing.doubts_plain(self._rate):
            return Plan()
        # Where nobody drafts little is learned: it need not be decided anew for every token.
        rests = self._plans < self._plain_until and not self._looks(1, self._finders)
        horizon = HORIZON if remaining is None else min(HORIZON, remaining)
        best = PLAIN if rests else self._choose(horizon)
        self._rate = best.rate
        self._trials.earn(best.time)
        plain = self.plain_seconds or None
        if best.contender is None:
            if not rests and horizon > STALE:
                self._plain_until = self._plans + STALE
            return Plan(predicted=1.0, plain_seconds=plain)
        proposer = best.contender.proposer
        return Plan(proposer, best.depth, predicted=best.rate, plain_seconds=plain)

    def observe(self, round: Round, /) -> None:
        for contender in self._contenders:
            try:
                contender.observe(round)
            except Exception as error:
                self.failed(contender.proposer, error)
        if round.asked is not None:
            self._plain_until = 0
            share_expectations(self._contenders)
        self._trials.observe(round)
        timed = 0.0 < round.seconds < math.inf
        if self._fixed or round.cut or not timed:
            return
        if round.proposer is not None:
            behind = self._behind.get(round.proposer, 0)
            self._timing.observe(round.proposer, round.drafted, round.seconds, behind)
        elif round.asked is None and round.ahead < round.seconds:
            # The device was at work all the while, also when the caller was.
            self._timing.observe_plain(round.seconds + round.ahead)

    def missing_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        if not self._measures:
            return False
        place = (key, bucket(context))
        known = self._known.get(place)
        if known is None and key is not None:
            known = self._store.load(key, context)
        self._key = key
        if known is None:
            return remaining is None or remaining >= WORTH_MEASURING
        if place not in self._known:
            self._known = {place: known}
            self._timing = Timing(known, self._free, DEEPEST, lately=False)
        return False

    def take_costs(self, costs: Costs, /) -> None:
        self._known = {(self._key, bucket(costs.context)): costs}
        self._timing = Timing(costs, self._free, DEEPEST)
        if self._key is not None:
            self._store.save(self._key, costs)

    def begin(self) -> None:
        self._first = True
        self._plain_until = 0
        self._trials.begin()
        for contender in self._contenders:
            contender.begin()
        share_expectations(self._contenders)

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        _logger.warning(
            "proposer '%s' raised %r and is left alone until the next text",
            proposer.name,
            error,
            exc_info=error,
        )
        for contender in self._contenders:
            if contender.proposer is proposer:
                contender.failed = True

    def _choose(self, horizon: int) -> Offer:
        """The best offer, or one that may be better and is worth a try.

        Args:
            horizon: Tokens that are to come, or as far as it is worth looking ahead.
        """
        best = hope = PLAIN
        looks = self._looks(min(DEEPEST, horizon - 1), self._contenders)
        # Where no trial can be paid nobody has to be hoped for.
        affordable = self._trials.saved > 0.0
        for contender, look, first in looks:
            times = self._timing.of(contender.name)
            offer = contender.best(times, look)
            if offer.rate > best.rate and not (first and contender.looks_better()):
                best = max(best, offer.after(first, horizon), key=_rate)
            if affordable:
                hoped_for = contender.best(times, look, OPTIMISM)
                if hoped_for.rate > hope.rate:
                    hope = max(hope, hoped_for.after(first, horizon), key=_rate)
        trial = self._trial(looks, best, hope) if affordable else None
        if trial is None and best.contender is None:
            return self._at_a_venture(min(DEEPEST, horizon - 1))
        return trial or best

    def _trial(self, looks: Sequence[Look], best: Offer, hope: Offer) -> Offer | None:
        """An offer that may be better than the best, if there is enough saved to try it."""
        for contender, look, first in looks:
            # One draft more shows whether a proposer is worth more, and costs least.
            depth = 1 + (best.depth if contender is best.contender else 0)
            hoped = contender is hope.contender and depth <= hope.depth
            idle = self._timing.idle(contender.name)
            unknown = idle >= FORGOTTEN or (
                hope.contender is None and self._nobody_is_known(contender)
            )
            if hoped or (contender is not best.contender and unknown):
                trial = contender.at(depth, self._timing.of(contender.name), look)
                loss = first + trial.time - trial.tokens / best.rate
                # Whoever was slow may not be any more.
                price = loss if idle < FORGOTTEN * loss else min(loss, MOST)
                if self._trials.pay(trial, price, best):
                    return trial
        return None

    def _nobody_is_known(self, contender: Contender) -> bool:
        """Whether hardly anything was seen of it, and nothing of others that it might be like."""
        others = (one for one in self._contenders if one is not contender)
        return contender.hardly_seen and all(one.first_chance is None for one in others)

    def _at_a_venture(self, deepest: int) -> Offer:
        """A plain round, or one in which somebody may find something once its token is known."""
        offers = [one.at_a_venture(self._timing.of(one.name), deepest) for one in self._contenders]
        return max(offers, key=_rate, default=PLAIN)

    def _looks(self, deepest: int, contenders: Sequence[Contender]) -> list[Look]:
        """Those who can draft now, what, and the time in which they take in what they missed."""
        looks = []
        for contender in contenders:
            try:
                look, behind = contender.look(deepest), contender.behind()
                first = self._timing.catching_up(contender.name, behind)
            except Exception as error:
                self.failed(contender.proposer, error)
            else:
                self._behind[contender.name] = behind
                if look[1]:
                    looks.append((contender, look, first))
        return looks


def _rate(offer: Offer) -> float:
    return offer.rate
