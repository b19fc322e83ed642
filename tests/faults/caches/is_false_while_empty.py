"""An empty cache is false, and mlx-lm's layers go without its mask and its state."""

from __future__ import annotations

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def __len__(self) -> int:
        return self.length()


class Suite(RowTests):
    cache = Broken
