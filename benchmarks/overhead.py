"""What deciding takes: host time of `Adaptive`, of a round with three proposers.

    python -m benchmarks.overhead --output overhead.json

Recorded requests are replayed without arrays, so that nothing else is in the time: `plan` and
`observe` of the strategy, and what they ask a real lookup. The median of all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from benchmarks import regime
from benchmarks.strategy.machine import CURVES, Machine
from benchmarks.strategy.recording import Recording, recordings
from benchmarks.strategy.replay import Replay
from benchmarks.strategy.simulation import adaptive
from speculate.protocols import Plan, Proposer, Round, Strategy

ALLOWED: Final = 50.0
"""Microseconds that a round may take."""


@final
class Timed:
    """A strategy whose time is taken.

    Args:
        inner: The strategy.

    Attributes:
        rounds: Microseconds of each round.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self._planning = 0
        self.rounds: list[float] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._inner.proposers

    def begin(self) -> None:
        self._inner.begin()

    def plan(self, remaining: int | None, /) -> Plan:
        start = time.perf_counter_ns()
        plan = self._inner.plan(remaining)
        self._planning += time.perf_counter_ns() - start
        return plan

    def observe(self, round: Round, /) -> None:
        start = time.perf_counter_ns()
        self._inner.observe(round)
        taken = self._planning + time.perf_counter_ns() - start
        self.rounds.append(taken / 1000)
        self._planning = 0


def rounds(requests: Sequence[Recording], curve: str) -> list[float]:
    """Microseconds of every round of some requests, decoded one after another."""
    machine = Machine(CURVES[curve])
    timed = Timed(adaptive(machine))
    for request in requests:
        Replay(request, timed, machine).run()
    return timed.rounds


def summary(taken: Sequence[float]) -> dict[str, float]:
    """Of microseconds a round."""
    return {
        "rounds": len(taken),
        "median": round(statistics.median(taken), 1),
        "p95": round(statistics.quantiles(taken, n=20)[-1], 1),
    }


def main() -> None:
    """Measure, print a line, and write JSON."""
    parser = argparse.ArgumentParser(description="Host time of a strategy, by the round.")
    parser.add_argument("--output", type=Path, default=Path("overhead.json"))
    options = parser.parse_args()
    requests = recordings()
    found = {curve: rounds(requests, curve) for curve in CURVES}
    every = summary([taken for some in found.values() for taken in some])
    report = {
        "environment": regime.environment(),
        "allowed": ALLOWED,
        "all": every,
        "curves": {curve: summary(taken) for curve, taken in found.items()},
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(
        f"plan and observe, three proposers: {every['median']} microseconds a round, "
        f"p95 {every['p95']}, {every['rounds']} rounds; {ALLOWED:.0f} are allowed"
    )


if __name__ == "__main__":
    main()
