"""A strategy that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculate.testing.suites import StrategyTests

from speculate import PromptLookup
from speculate.protocols import Plan, Proposer, Round, Strategy


class Toy:
    """Drafts two tokens by lookup, again and again."""

    def __init__(self) -> None:
        self.lookup = PromptLookup()

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self.lookup,)

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 2)

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""


class ToyTests(StrategyTests):
    """Proves what `strategy` makes."""

    strategy: Callable[[], Strategy] = Toy

    def make_strategy(self) -> Strategy:
        return type(self).strategy()
