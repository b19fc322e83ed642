"""A draft stands also where the law that it is judged by gives it no probability."""

from __future__ import annotations

import mlx.core as mx

from speculate.sampling.acceptance import Rejection, accepted_prefix, at
from tests.faults.samplers.toys import ToyTests


class Broken(Rejection):  # type: ignore[misc]  # final, and broken on purpose
    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        k = q.shape[0]
        return accepted_prefix(coins * at(q, tokens) < at(p[:k], tokens)), mx.maximum(p[:k] - q, 0)


class Suite(ToyTests):
    rule = Broken
    same_text = False
