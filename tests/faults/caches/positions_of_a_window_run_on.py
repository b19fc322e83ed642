"""A window takes rows back, and numbers the next ones as if it had not."""

from __future__ import annotations

from typing import Any

from speculate.backends.rotating import RewindableRotatingKVCache
from tests.backends.test_kinds import TestWindow
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    trim = RewindableRotatingKVCache.trim

    def changed(self: Any, n: int, /) -> int:
        taken = trim(self, n)
        self.offset += n
        return taken

    patch.setattr(RewindableRotatingKVCache, "trim", changed)


Suite = TestWindow
