"""What stayed of the block before the last rejected one is not run again."""

from __future__ import annotations

from speculate.models.gated_delta import FusedReplay, ResumePoint
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35Folded


def plant(patch: Patch) -> None:
    def wrong(self: FusedReplay, m: int, /) -> ResumePoint:
        own = self.inputs.first(self.fused + m)
        behind = [part[:, self.fused :] for part in (own.qkv, own.a, own.b)]
        return ResumePoint(self.before, type(own)(*behind))

    patch.setattr(FusedReplay, "resume", wrong)


Suite = TestQwen35Folded
