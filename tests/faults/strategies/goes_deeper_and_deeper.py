"""The depth grows with every accepted draft, beyond what caches record."""

from __future__ import annotations

from speculate.protocols import Plan, Round
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    depth = 1

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, self.depth)

    def observe(self, round: Round, /) -> None:
        self.depth = self.depth + 1 if round.accepted == round.drafted else 1


class Suite(ToyTests):
    strategy = Broken
