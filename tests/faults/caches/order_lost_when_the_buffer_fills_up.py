"""A window that moves to the front of its buffer loses the order of its rows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from speculate.backends.rotating import RewindableRotatingKVCache
from tests.backends.test_kinds import TestWindow
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    update = RewindableRotatingKVCache.update_and_fetch

    def changed(self: Any, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        before = self.rows()
        seen = update(self, keys, values)
        if self.rows() < before + keys.shape[2]:
            self.keys = mx.roll(self.keys, 1, 2)
        return seen

    patch.setattr(RewindableRotatingKVCache, "update_and_fetch", changed)


Suite = TestWindow
