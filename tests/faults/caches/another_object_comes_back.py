"""`hand_back` fills a new cache, and the caller's list keeps an empty one."""

from __future__ import annotations

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def hand_back(self) -> object:
        self.source = None
        return super().hand_back()


class Suite(RowTests):
    cache = Broken
