"""The noise of a token depends on how many were judged before it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Choice
from speculate.sampling.acceptance import AcceptanceRule, Coupled, ExactMatch
from speculate.sampling.filters import Distribution
from tests.faults.samplers.toys import ToyTests


class Counting:
    """Counts rows instead of positions."""

    def __init__(self, law: Distribution) -> None:
        self._inner = Coupled(law)
        self._used = 0

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return self._inner.choose(logits, position)

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        self._used += len(positions)
        return self._inner.pick(logits, range(self._used - len(positions), self._used))


def make(law: Distribution) -> AcceptanceRule:
    return ExactMatch(Counting(law))


class Suite(ToyTests):
    rule = staticmethod(make)
