"""Checkpoints share one place, so that the outer one returns to the inner one's."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    place = 0

    def checkpoint(self) -> Callable[[], None]:
        self.place = self.offset

        def go_back() -> None:
            self.offset = self.place

        return go_back


class Suite(RowTests):
    cache = Broken
