"""A cache of rows that a mistake can be built into."""

from __future__ import annotations

from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from speculate.testing.suites import CacheTests

from speculate.backends.base import TrimsByOffset
from speculate.protocols import Rollbackable


class Rows(TrimsByOffset, KVCache):
    """Right, in the least code."""

    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache.source = stock
        return cache

    source: Any = None

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]

    def hand_back(self) -> object:
        stock: Any = self.source or KVCache()
        stock.keys, stock.values, stock.offset = self.keys, self.values, self.offset
        self.keys, self.values, self.offset = None, None, 0
        return stock


class RowTests(CacheTests):
    """Proves `cache`, a subclass of `Rows`."""

    cache: type[Rows] = Rows

    def make_cache(self) -> Rollbackable:
        return self.cache()

    def adopt(self, stock: object, /) -> Rollbackable:
        return self.cache.adopt(stock)
