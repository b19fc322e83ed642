"""The logits of a block begin with those of its second token."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Forward
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        out = self.inner.forward(tokens, cache)
        return Forward(mx.roll(out.logits, -1, 1), out.hidden)


class Suite(ToyTests):
    model = Broken
