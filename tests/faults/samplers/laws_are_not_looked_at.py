"""A draft is judged by whatever it says that it was drawn from."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Draft
from speculate.sampling import acceptance
from tests.faults.planting import Patch
from tests.sampling.test_conformance import TestRejection


def plant(patch: Patch) -> None:
    right = acceptance.draft_probabilities

    def trusting(draft: Draft, width: int) -> mx.array:
        laws = [law for law in draft.laws if law is not None]
        return mx.exp(mx.concatenate(laws)) if laws else right(draft, width)

    patch.setattr(acceptance, "draft_probabilities", trusting)


Suite = TestRejection
