"""A noted rewind puts one row fewer in front of the next block."""

from __future__ import annotations

from speculate.models.gated_delta import FusedReplay
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35Folded


def plant(patch: Patch) -> None:
    resume = FusedReplay.resume
    patch.setattr(FusedReplay, "resume", lambda self, m: resume(self, m + -1))


Suite = TestQwen35Folded
