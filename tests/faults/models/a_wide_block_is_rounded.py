"""Blocks are computed in half precision, and single steps are not."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Forward
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        out = self.inner.forward(tokens, cache)
        if tokens.shape[1] == 1:
            return out
        return Forward(out.logits.astype(mx.bfloat16).astype(mx.float32), out.hidden)


class Suite(ToyTests):
    model = Broken
