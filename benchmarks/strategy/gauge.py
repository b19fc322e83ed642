"""What forwards and drafts cost, as the library itself measures it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, final

import speculate as sp
from speculate.protocols import Costs, Plan, Proposer, Round, SpeculativeModel

Key = TypeVar("Key", int, str)

TIMES: Final = 3
"""Measurements. The fastest of each counts: whatever disturbs only adds."""


@final
class Gauge:
    """A strategy that has costs measured, and then decodes token by token.

    Args:
        proposers: Whose costs to measure.
    """

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._proposers = proposers
        self.costs: list[Costs] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._proposers

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan()

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""

    def missing_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        return True

    def take_costs(self, costs: Costs, /) -> None:
        self.costs.append(costs)


def measure_costs(
    model: SpeculativeModel, proposers: Sequence[Proposer], prompt: Sequence[int]
) -> Costs:
    """Costs behind a prompt."""
    gauge = Gauge(proposers)
    decoder = sp.Decoder(model, gauge)
    for _ in range(TIMES):
        list(decoder.generate(prompt, max_tokens=1))
    forward = _least([costs.forward for costs in gauge.costs])
    draft = _least([costs.draft for costs in gauge.costs])
    return Costs(gauge.costs[0].context, forward, draft)


def _least(found: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    return {key: min(times[key] for times in found) for key in found[0]}
