"""A draft stands where the target finds it likely, and the text depends on it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Choice, Draft
from speculate.sampling.acceptance import (
    AcceptanceRule,
    Coupled,
    ExactMatch,
    Verification,
    accepted_prefix,
)
from speculate.sampling.filters import Distribution
from tests.faults.samplers.toys import ToyTests


class Typical:
    """Accepts what is likely enough."""

    def __init__(self, law: Distribution) -> None:
        self._inner = ExactMatch(Coupled(law))

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return self._inner.choose(logits, position)

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        judged = self._inner.verify(logits, positions, draft)
        k = draft.tokens.shape[0]
        if k == 0:
            return judged
        p = mx.softmax(logits[:k], axis=-1)
        stands = mx.take_along_axis(p, draft.tokens[:, None], axis=-1)[:, 0] > 0.2
        return Verification(accepted_prefix(stands), judged.tokens)


def make(law: Distribution) -> AcceptanceRule:
    return Typical(law)


class Suite(ToyTests):
    rule = staticmethod(make)
