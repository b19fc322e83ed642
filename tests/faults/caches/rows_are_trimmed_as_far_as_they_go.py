"""A trim of too much takes back what there is, in silence."""

from __future__ import annotations

from typing import Any

from speculate.backends.kv import RewindableKVCache
from tests.backends.test_kinds import TestRows
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    trim, can_trim = RewindableKVCache.trim, RewindableKVCache.can_trim

    def clamped(self: Any, n: int, /) -> int:
        return trim(self, min(n, self.length()))

    patch.setattr(RewindableKVCache, "trim", clamped)
    patch.setattr(RewindableKVCache, "can_trim", lambda self, n: can_trim(self, n) or n > 0)


Suite = TestRows
