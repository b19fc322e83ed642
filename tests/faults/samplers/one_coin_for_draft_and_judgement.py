"""The coin that accepts a draft is the noise that drew it."""

from __future__ import annotations

import mlx.core as mx

from speculate.sampling.acceptance import Rejection
from tests.faults.samplers.toys import ToyTests


class Broken(Rejection):  # type: ignore[misc]  # final, and broken on purpose
    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        # Drafts of low ids get low coins.
        shared = (tokens.astype(mx.float32) + coins) / q.shape[-1]
        return super()._verify(p, q, tokens, shared)


class Suite(ToyTests):
    rule = Broken
    same_text = False
