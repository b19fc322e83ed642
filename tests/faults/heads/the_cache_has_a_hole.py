"""The newest row of a batch never gets into the cache."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Forward, Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        out = self.inner.step(hidden, tokens, cache)
        if tokens.shape[-1] > 1:
            for layer in cache:
                layer.trim(1)
        return out


class Suite(ToyTests):
    head = Broken
