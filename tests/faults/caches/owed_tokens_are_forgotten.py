"""What was taken out with a whole block is not fed again."""

from __future__ import annotations

from speculate.backends.group import CacheGroup
from tests.faults.planting import Patch
from tests.models.test_families import TestLfm2


def plant(patch: Patch) -> None:
    patch.setattr(CacheGroup, "to_replay", lambda self: None)


Suite = TestLfm2
