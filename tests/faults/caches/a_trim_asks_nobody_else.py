"""A cache takes rows back without its group, and is shorter than its neighbours."""

from __future__ import annotations

from speculate.backends.base import check_trim
from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def trim(self, n: int, /) -> int:
        check_trim(self, None, n)
        self.offset -= n
        return n


class Suite(RowTests):
    cache = Broken
