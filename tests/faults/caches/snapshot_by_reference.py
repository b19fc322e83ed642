"""A ring is snapshot by reference, and single steps then write into the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache
from speculate.testing.suites import CacheTests

from speculate.backends.group import GroupMember
from speculate.protocols import Rollbackable


class RingWithSnapshots(GroupMember, RotatingKVCache):
    """Goes back by swapping in the arrays of the start."""

    def __init__(self, max_size: int, keep: int = 0) -> None:
        RotatingKVCache.__init__(self, max_size=max_size, keep=keep)
        self.snapshot: tuple[Any, ...] = (None, None, 0, 0)

    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls(stock.max_size, stock.keep)
        cache.keys, cache.values = stock.keys, stock.values
        cache.offset, cache._idx = stock.offset, stock._idx
        return cache

    def length(self) -> int:
        return int(self.offset)

    def can_trim(self, n: int, /) -> bool:
        return n == 0 or self.offset - n == self.snapshot[2]

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int, /) -> int:
        if n:
            self.keys, self.values, self.offset, self._idx = self.snapshot
        return n

    def start_speculation(self) -> None:
        self.snapshot = (self.keys, self.values, self.offset, self._idx)

    def stop_speculation(self) -> None:
        """Nothing to do."""

    def checkpoint(self) -> Callable[[], None]:
        return lambda: None

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]

    def hand_back(self) -> object:
        stock: Any = RotatingKVCache(self.max_size, self.keep)
        stock.keys, stock.values = self.keys, self.values
        stock.offset, stock._idx = self.offset, self._idx
        self.keys = self.values = None
        return stock


class Suite(CacheTests):
    whole_blocks = True

    def make_cache(self) -> Rollbackable:
        return RingWithSnapshots(8)

    def adopt(self, stock: object, /) -> Rollbackable:
        return RingWithSnapshots.adopt(stock)
