"""A depth falls below 0 after rejections."""

from __future__ import annotations

from speculate.protocols import Plan, Round
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    depth = 3

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, self.depth)

    def observe(self, round: Round, /) -> None:
        self.depth += round.accepted - 1


class Suite(ToyTests):
    strategy = Broken
