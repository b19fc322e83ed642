"""A forward takes a batch, and feeds its first sequence."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Forward
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        return self.inner.forward(tokens.reshape(-1)[None] if tokens.size else tokens, cache)


class Suite(ToyTests):
    model = Broken
