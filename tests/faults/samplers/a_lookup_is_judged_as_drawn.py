"""A draft that was certain is judged as if it had been drawn from the target's own law."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Draft
from speculate.sampling.acceptance import Rejection, Verification
from tests.faults.samplers.toys import ToyTests


class Broken(Rejection):  # type: ignore[misc]  # final, and broken on purpose
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        laws = draft.laws or [mx.log(mx.softmax(row, axis=-1))[None] for row in logits]
        return super().verify(logits, positions, Draft(draft.tokens, laws[: draft.tokens.shape[0]]))


class Suite(ToyTests):
    rule = Broken
    same_text = False
