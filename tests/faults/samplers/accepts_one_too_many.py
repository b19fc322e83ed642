"""The first wrong draft stands."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from speculate.protocols import Decision, Draft
from speculate.sampling.sampler import TokenSampler
from tests.faults.planting import Patch
from tests.sampling.test_conformance import TestCoupled


def plant(patch: Patch) -> None:
    verify = TokenSampler.verify

    def generous(self: Any, newest: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
        found = verify(self, newest, draft, logits)
        accepted = mx.minimum(found.accepted + 1, draft.tokens.shape[0])
        return Decision(accepted, found.tokens, found.logits)

    patch.setattr(TokenSampler, "verify", generous)


Suite = TestCoupled
