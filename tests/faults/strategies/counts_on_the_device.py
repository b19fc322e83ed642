"""Acceptance is averaged in an array."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Round
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.average = mx.zeros((1024,))

    def observe(self, round: Round, /) -> None:
        self.average = 0.9 * self.average + round.accepted
        mx.eval(self.average)


class Suite(ToyTests):
    strategy = Broken
