"""`make_cache` forgets at which position the text starts."""

from __future__ import annotations

from speculate.protocols import Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.inner.make_cache()


class Suite(ToyTests):
    head = Broken
