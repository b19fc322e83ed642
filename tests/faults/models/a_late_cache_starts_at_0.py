"""`make_cache` forgets at which position the text starts."""

from __future__ import annotations

from speculate.protocols import Rollbackable
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(max_kv_size)


class Suite(ToyTests):
    model = Broken
