"""One cache that stands for two layers is adopted twice, and rows are gone."""

from __future__ import annotations

from collections.abc import Sequence

from speculate.backends.group import join
from speculate.protocols import Rollbackable
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        alone = [self.inner.adopt([one])[0] for one in cache]
        return alone if all(isinstance(one, Rollbackable) for one in cache) else join(alone)


class Suite(ToyTests):
    model = Broken
