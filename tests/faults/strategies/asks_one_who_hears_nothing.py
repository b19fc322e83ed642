"""A proposer is planned that is not among the strategy's."""

from __future__ import annotations

from speculate import PromptLookup
from speculate.protocols import Plan
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.other = PromptLookup(name="other")

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.other, 2)


class Suite(ToyTests):
    strategy = Broken
