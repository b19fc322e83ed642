"""It is not prepared to be asked before it has heard of the last round."""

from __future__ import annotations

from speculate.protocols import Plan, Round
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    asked = heard = 0

    def plan(self, remaining: int | None, /) -> Plan:
        assert self.asked == self.heard, "nobody told me"
        self.asked += 1
        return super().plan(remaining)

    def observe(self, round: Round, /) -> None:
        self.heard += 1


class Suite(ToyTests):
    strategy = Broken
