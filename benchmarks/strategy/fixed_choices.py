"""Fixed choices, and which of them would have been best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs

from benchmarks.strategy.machine import DEEPEST, Machine
from benchmarks.strategy.recording import Recording
from speculate.protocols import Proposer

DEEPEST_MODEL: Final = 8
"""Depth to which heads and draft models are recorded."""


@final
@attrs.frozen
class Arm:
    """A proposer and a depth, in every round."""

    proposer: str | None
    depth: int

    def __str__(self) -> str:
        return f"{self.proposer} {self.depth}" if self.proposer else "off"


OFF: Final = Arm(None, 0)
ARMS: Final[Sequence[Arm]] = [
    OFF,
    *(Arm(name, depth) for name in ("mtp", "draft") for depth in range(1, DEEPEST_MODEL + 1)),
    *(Arm("lookup", depth) for depth in range(1, DEEPEST + 1)),
]
"""Every fixed choice that a strategy is compared with."""


@final
@attrs.frozen
class Best:
    """The fixed choice that takes least time.

    Attributes:
        arm: The choice.
        time: In plain steps.
    """

    arm: Arm
    time: float


def fixed_times(recording: Recording, machine: Machine, arm: Arm) -> list[float]:
    """Time at which each token was there under a fixed choice, in plain steps."""
    times, last = [0.0], len(recording.output) - 1
    if arm.proposer is None:
        return [float(place) for place in range(last + 1)]
    rights, lengths = recording.right[arm.proposer], recording.length[arm.proposer]
    while (place := len(times) - 1) < last:
        drafted = min(arm.depth, lengths[place], last - place - 1)
        right = min(drafted, rights[place])
        time = machine.time(arm.proposer if drafted else None, drafted)
        times += [times[-1] + time] * (right + 1)
    return times


def best(recording: Recording, machine: Machine, tokens: int | None = None) -> Best:
    """The best fixed choice in hindsight.

    Args:
        recording: A request.
        machine: Its times.
        tokens: Look at so many of the output; by default at all.
    """
    end = -1 if tokens is None else tokens - 1
    found = [Best(arm, fixed_times(recording, machine, arm)[end]) for arm in ARMS]
    return min(found, key=lambda choice: choice.time)


def proposer_of(arm: Arm, proposers: Sequence[Proposer]) -> Proposer | None:
    """The proposer that an arm names."""
    return next((proposer for proposer in proposers if proposer.name == arm.proposer), None)
