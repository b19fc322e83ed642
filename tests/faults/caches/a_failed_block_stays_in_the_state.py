"""A forward that fails leaves its block in the layers that had consumed it."""

from __future__ import annotations

from speculate.backends.arrays import RewindableArraysCache
from tests.backends.test_kinds import TestStateWithoutRecords
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    patch.setattr(RewindableArraysCache, "abandon_block", lambda self: None)


Suite = TestStateWithoutRecords
