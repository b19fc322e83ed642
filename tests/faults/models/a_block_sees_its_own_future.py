"""Tokens of a block see those behind them."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Forward
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        out = self.inner.forward(tokens, cache)
        return Forward(out.logits, out.hidden.mean(axis=1, keepdims=True) + 0 * out.hidden)


class Suite(ToyTests):
    model = Broken
