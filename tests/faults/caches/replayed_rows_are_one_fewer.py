"""A noted rewind that is carried out runs one row fewer."""

from __future__ import annotations

from speculate.models.gated_delta import FusedReplay
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35Folded


def plant(patch: Patch) -> None:
    after = FusedReplay.after
    patch.setattr(FusedReplay, "after", lambda self, m: after(self, max(1, m + -1)))


Suite = TestQwen35Folded
