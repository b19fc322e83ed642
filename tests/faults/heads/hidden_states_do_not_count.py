"""The head guesses from tokens alone."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Forward, Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        return self.inner.step(mx.ones_like(hidden), tokens, cache)


class Suite(ToyTests):
    head = Broken
