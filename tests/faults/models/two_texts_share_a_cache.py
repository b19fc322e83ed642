"""`make_cache` gives the same caches again."""

from __future__ import annotations

from speculate.protocols import Rollbackable
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.caches = self.inner.make_cache()

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(position=position) if position else self.caches


class Suite(ToyTests):
    model = Broken
