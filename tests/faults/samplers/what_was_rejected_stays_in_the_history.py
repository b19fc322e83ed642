"""Rejected drafts stay in the text that penalties look at."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from speculate.protocols import Decision, Draft
from speculate.sampling.sampler import TokenSampler
from tests.faults.planting import Patch
from tests.sampling.test_conformance import TestGreedyWithPenalties


def plant(patch: Patch) -> None:
    verify = TokenSampler.verify

    def remembering(self: Any, newest: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
        decision = verify(self, newest, draft, logits)
        self._history = mx.concatenate([self._history, draft.tokens.astype(mx.uint32)])
        return decision

    patch.setattr(TokenSampler, "verify", remembering)


Suite = TestGreedyWithPenalties
