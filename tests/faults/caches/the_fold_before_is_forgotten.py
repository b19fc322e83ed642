"""What stayed of the block before the last rejected one is not run again."""

from __future__ import annotations

from speculate.models.gated_delta import FoldedReplay, Start
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35Folded


def plant(patch: Patch) -> None:
    def wrong(self: FoldedReplay, m: int, /) -> Start:
        own = self.inputs.first(self.folded + m)
        behind = [part[:, self.folded :] for part in (own.qkv, own.a, own.b)]
        return Start(self.before, type(own)(*behind))

    patch.setattr(FoldedReplay, "resume", wrong)


Suite = TestQwen35Folded
