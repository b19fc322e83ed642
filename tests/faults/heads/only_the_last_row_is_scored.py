"""A batch gives logits for its last row only."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Forward, Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        out = self.inner.step(hidden, tokens, cache)
        return Forward(out.logits[:, -1:], out.hidden[:, -1:])


class Suite(ToyTests):
    head = Broken
