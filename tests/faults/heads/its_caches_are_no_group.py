"""`make_cache` does not join its caches, and a window cannot take them back."""

from __future__ import annotations

from speculate.backends.kv import RewindableKVCache
from speculate.protocols import Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return [RewindableKVCache(position)]


class Suite(ToyTests):
    head = Broken
