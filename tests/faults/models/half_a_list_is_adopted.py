"""A list with a cache that nobody knows is adopted as far as it goes."""

from __future__ import annotations

from collections.abc import Sequence

from speculate.backends.group import join
from speculate.protocols import Rollbackable
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        known = [self.inner.adopt([one])[0] for one in cache[:-1]]
        return join([*known, *self.inner.adopt(cache[-1:])])


class Suite(ToyTests):
    model = Broken
