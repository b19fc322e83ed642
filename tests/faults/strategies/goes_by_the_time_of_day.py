"""The depth depends on the clock of the machine."""

from __future__ import annotations

import time

from speculate.protocols import Plan
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 1 + time.perf_counter_ns() // 64 % 2)


class Suite(ToyTests):
    strategy = Broken
