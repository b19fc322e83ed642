"""What one strategy learned is kept by the class, and others go by it."""

from __future__ import annotations

from typing import ClassVar

from speculate.protocols import Plan, Round
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    learned: ClassVar[list[int]] = []

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 1 + len(self.learned) % 3)

    def observe(self, round: Round, /) -> None:
        if not round.accepted:
            self.learned.append(round.index)


class Suite(ToyTests):
    strategy = Broken
