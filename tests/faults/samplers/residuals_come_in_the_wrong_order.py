"""A block draws the token behind its accepted drafts by what another draft left."""

from __future__ import annotations

import mlx.core as mx

from speculate.sampling.acceptance import BlockVerification
from tests.faults.samplers.toys import ToyTests


class Broken(BlockVerification):  # type: ignore[misc]  # final, and broken on purpose
    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        accepted, residual = super()._verify(p, q, tokens, coins)
        return accepted, residual[::-1]


class Suite(ToyTests):
    rule = Broken
    same_text = False
