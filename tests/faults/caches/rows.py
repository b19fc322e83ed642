"""A cache of rows that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from speculate.backends.member import GroupMember
from speculate.backends.rows import check_trim
from speculate.protocols import Rollbackable
from speculate.testing.suites import CacheTests


class Rows(GroupMember, KVCache):
    """Right, in the least code."""

    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache.source = stock
        return cache

    source: Any = None

    def length(self) -> int:
        return int(self.offset)

    def is_trimmable(self) -> bool:
        return True

    def can_trim(self, n: int, /) -> bool:
        return 0 <= n <= self.length()

    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        self.offset -= n
        return n

    def start_speculation(self) -> None:
        """Records nothing."""

    def stop_speculation(self) -> None:
        """Recorded nothing."""

    def checkpoint(self) -> Callable[[], None]:
        offset = self.offset

        def go_back() -> None:
            self.offset = offset

        return go_back

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
