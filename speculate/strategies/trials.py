"""How much time a strategy may lose to find out whether something else is better."""

from __future__ import annotations

from typing import Final, final

from speculate.protocols import Round
from speculate.strategies.contender import Offer

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
