"""A processor sees the text of each row of a block without the newest token."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from speculate.protocols import Draft
from speculate.sampling.sampler import TokenSampler
from tests.faults.planting import Patch
from tests.sampling.test_conformance import TestGreedyWithPenalties


def plant(patch: Patch) -> None:
    processed = TokenSampler._processed

    def short(self: Any, text: mx.array, draft: Draft, logits: mx.array, row: int) -> mx.array:
        return processed(self, text[:-1] if row else text, draft, logits, row)

    patch.setattr(TokenSampler, "_processed", short)


Suite = TestGreedyWithPenalties
