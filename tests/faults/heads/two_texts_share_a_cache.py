"""`make_cache` gives the same caches again."""

from __future__ import annotations

from speculate.protocols import Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.caches: dict[int, list[Rollbackable]] = {}

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.caches.setdefault(position, self.inner.make_cache(position))


class Suite(ToyTests):
    head = Broken
