"""Strategies over all recordings and machines, cold and warm."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, final

import attrs

import speculate as sp
from benchmarks.strategy.fixed_choices import Arm, Best, best, fixed_times
from benchmarks.strategy.machine import CURVES, Machine
from benchmarks.strategy.recording import Recording
from benchmarks.strategy.replay import Recorded, Replay
from benchmarks.strategy.rules import UCB1, AcceptedTiers
from speculate.protocols import Proposer, Strategy

Memory = Literal["cold", "workload", "shuffled"]
"""How long a strategy lives: one request, all of a workload, all of all workloads mixed."""

MEMORIES: Final[Sequence[Memory]] = ("cold", "workload", "shuffled")
START: Final = 128
"""Tokens that count as the beginning."""

CLOCKS: Final = 3
"""Clocks that each request is decoded with."""


@final
@attrs.frozen
class Outcome:
    """What a request took, in plain steps.

    Attributes:
        curve: Of the machine.
        workload: The request's.
        request: Its number in the workload.
        time: It took.
        start: Its first 128 tokens took.
        plain: Plain decoding takes.
        best: The best fixed choice.
        best_start: The best fixed choice for the first 128 tokens.
    """

    curve: str
    workload: str
    request: int
    time: float
    start: float
    plain: float
    best: Best
    best_start: Best

    @property
    def ratio(self) -> float:
        """Time over that of the best fixed choice."""
        return self.time / self.best.time


@final
@attrs.frozen
class Bound:
    """What a request takes at best.

    Attributes:
        whole: The best fixed choice.
        start: The best fixed choice for the first 128 tokens.
    """

    whole: Best
    start: Best


Maker = Callable[[Machine], Strategy]
Bounds = Mapping[tuple[str, str, int], Bound]


def adaptive(machine: Machine) -> Strategy:
    """The library's, with measured costs."""
    return sp.Adaptive(*_proposers(), costs=machine.costs())


def adaptive_head(machine: Machine) -> Strategy:
    """The library's, with the head's drafts alone."""
    return sp.Adaptive(Recorded("mtp"), costs=machine.costs())


def adaptive_unmeasured(machine: Machine) -> Strategy:
    """The library's, that knows of no costs."""
    return sp.Adaptive(*_proposers(), measure=False)


def tiers(machine: Machine) -> Strategy:
    """Depth by accepted length, of the head's drafts."""
    return AcceptedTiers(Recorded("mtp"))


def ucb1(machine: Machine) -> Strategy:
    """A bandit over every fixed choice."""
    return UCB1([Recorded("mtp"), Recorded("draft"), Recorded("lookup")])


def _proposers() -> Sequence[Proposer]:
    return Recorded("mtp"), Recorded("draft"), sp.PromptLookup()


def bounds(recordings: Iterable[Recording]) -> Bounds:
    """The best fixed choices of every request on every machine."""
    found = {}
    for recording in recordings:
        for curve, table in CURVES.items():
            machine = Machine(table)
            bound = Bound(best(recording, machine), best(recording, machine, START))
            found[curve, recording.workload, recording.request] = bound
    return found


def simulated(
    make: Maker, memory: Memory, recordings: Sequence[Recording], limits: Bounds
) -> list[Outcome]:
    """Decode every request on every machine.

    Args:
        make: Makes the strategy.
        memory: How long it lives.
        recordings: The requests, workload by workload.
        limits: From `bounds`.
    """
    outcomes = []
    for curve, table in CURVES.items():
        for clock in range(CLOCKS):
            strategies = _living(partial(make, Machine(table)), memory)
            for recording in _ordered(recordings, memory, clock):
                seed = f"{clock} {recording.workload} {recording.request}"
                machine = Machine(table, seed)
                times = Replay(recording, strategies(recording.workload), machine).run()
                outcomes.append(_outcome(curve, recording, times, limits))
    return outcomes


def fixed(arm: Arm, recordings: Sequence[Recording], limits: Bounds) -> list[Outcome]:
    """A fixed choice for every request on every machine."""
    return [
        _outcome(curve, recording, fixed_times(recording, Machine(table), arm), limits)
        for curve, table in CURVES.items()
        for recording in recordings
    ]


def _living(make: Callable[[], Strategy], memory: Memory) -> Callable[[str], Strategy]:
    """The strategy for the next request of a workload."""
    known: dict[str, Strategy] = {}

    def strategy(workload: str) -> Strategy:
        name = workload if memory == "workload" else ""
        if memory == "cold" or name not in known:
            known[name] = make()
        return known[name]

    return strategy


def _ordered(recordings: Sequence[Recording], memory: Memory, clock: int) -> Iterator[Recording]:
    if memory != "shuffled":
        return iter(recordings)
    return iter(random.Random(clock).sample(recordings, len(recordings)))


def _outcome(curve: str, recording: Recording, times: Sequence[float], limits: Bounds) -> Outcome:
    bound = limits[curve, recording.workload, recording.request]
    return Outcome(
        curve=curve,
        workload=recording.workload,
        request=recording.request,
        time=times[-1],
        start=times[START - 1],
        plain=len(times) - 1.0,
        best=bound.whole,
        best_start=bound.start,
    )
