"""Of the states of a block, kept by reference, the one picked is one too late."""

from __future__ import annotations

import mlx.core as mx

from speculate.models.gated_delta import KeptStates
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35


def plant(patch: Patch) -> None:
    after = KeptStates.after

    def wrong(self: KeptStates, m: int, /) -> mx.array:
        return after(self, min(max(1, m + 1), len(self.states)))

    patch.setattr(KeptStates, "after", wrong)


Suite = TestQwen35
