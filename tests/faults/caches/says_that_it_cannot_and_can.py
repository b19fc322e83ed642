"""`is_trimmable` denies what `trim` does, and mlx-lm's loops give up."""

from __future__ import annotations

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def is_trimmable(self) -> bool:
        return False


class Suite(RowTests):
    cache = Broken
