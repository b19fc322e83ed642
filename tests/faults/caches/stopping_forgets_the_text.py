"""`stop_speculation` drops more than the records."""

from __future__ import annotations

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    start = 0

    def start_speculation(self) -> None:
        self.start = self.offset

    def stop_speculation(self) -> None:
        self.offset = min(self.offset, self.start)


class Suite(RowTests):
    cache = Broken
