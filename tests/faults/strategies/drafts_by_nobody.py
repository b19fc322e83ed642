"""A pause is planned with a depth and without a proposer."""

from __future__ import annotations

from speculate.protocols import Plan
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(None, 2)


class Suite(ToyTests):
    strategy = Broken
