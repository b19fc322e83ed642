"""A trim takes back one token more than it says."""

from __future__ import annotations

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def trim(self, n: int, /) -> int:
        taken = super().trim(n)
        self.offset -= 1 if n > 1 else 0
        return taken


class Suite(RowTests):
    cache = Broken
