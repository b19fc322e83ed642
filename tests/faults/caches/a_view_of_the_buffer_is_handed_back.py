"""What is handed back keeps the whole buffer alive."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import RotatingKVCache

from speculate.backends.rotating import RewindableRotatingKVCache
from tests.backends.test_kinds import TestWindow
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    def view(self: Any) -> RotatingKVCache:
        stock: Any = self._source or RotatingKVCache(self.max_size, self.keep)
        if self.keys is not None:
            rows = min(self.rows(), self.max_size)
            stock.keys = self.keys[..., self.rows() - rows : self.rows(), :]
            stock.values = self.values[..., self.rows() - rows : self.rows(), :]
            stock.offset, stock._idx = self.offset, rows
        self.keys = self.values = None
        self.offset = self._idx = 0
        return stock  # type: ignore[no-any-return]

    patch.setattr(RewindableRotatingKVCache, "hand_back", view)


Suite = TestWindow
