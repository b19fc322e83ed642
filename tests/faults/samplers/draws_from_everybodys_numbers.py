"""Noise comes from mx.random."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Choice
from speculate.sampling.acceptance import AcceptanceRule, ExactMatch, most_likely
from speculate.sampling.filters import Distribution
from tests.faults.samplers.toys import ToyTests


class Global:
    """Draws as mlx-lm does."""

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return Choice(most_likely(logits))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        return mx.random.categorical(logits)


def make(law: Distribution) -> AcceptanceRule:
    return ExactMatch(Global())


class Suite(ToyTests):
    rule = staticmethod(make)
