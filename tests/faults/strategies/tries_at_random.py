"""Now and then a depth is drawn, from everybody's random numbers."""

from __future__ import annotations

import random

from speculate.protocols import Plan
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, random.choice((1, 2, 3)))


class Suite(ToyTests):
    strategy = Broken
