"""`can_trim` promises what `trim` refuses."""

from __future__ import annotations

from speculate.errors import RewindError
from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def can_trim(self, n: int, /) -> bool:
        return n >= 0

    def trim(self, n: int, /) -> int:
        if not 0 <= n <= self.length():
            raise RewindError(f"{n} are too many")
        return super().trim(n)


class Suite(RowTests):
    cache = Broken
