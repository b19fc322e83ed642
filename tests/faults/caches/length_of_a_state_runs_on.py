"""A state goes back, and the length it tells does not."""

from __future__ import annotations

from typing import Any

from speculate.backends.arrays import RewindableArraysCache
from tests.backends.test_kinds import TestState
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    trim = RewindableArraysCache.trim

    def changed(self: Any, n: int, /) -> int:
        length = self._length
        taken = trim(self, n)
        self._length = length
        return taken

    patch.setattr(RewindableArraysCache, "trim", changed)


Suite = TestState
