"""Behind a rejected draft a token is drawn from p, and not from what q leaves of it."""

from __future__ import annotations

import mlx.core as mx

from speculate.sampling.acceptance import Rejection
from tests.faults.samplers.toys import ToyTests


class Broken(Rejection):  # type: ignore[misc]  # final, and broken on purpose
    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        accepted, _ = super()._verify(p, q, tokens, coins)
        return accepted, p[: q.shape[0]]


class Suite(ToyTests):
    rule = Broken
    same_text = False
