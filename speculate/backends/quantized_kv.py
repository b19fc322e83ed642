"""Quantised full attention: as with plain rows, taking back moves the offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache
from typing_extensions import override

from speculate.backends.kv import RewindableKVCache
from speculate.backends.member import GroupMember
from speculate.backends.rows import check_trim

Packed = tuple[mx.array, mx.array, mx.array]
"""Quantised rows, with their scales and biases."""


@final
class RewindableQuantizedKVCache(GroupMember, QuantizedKVCache):
    """`QuantizedKVCache` whose trim is exact or an error."""

    keys: Packed | None  # type: ignore[assignment]  # mlx-lm's are inferred too narrow
    values: Packed | None  # type: ignore[assignment]

    def __init__(self, group_size: int = 64, bits: int = 8) -> None:
        QuantizedKVCache.__init__(self, group_size=group_size, bits=bits)
        self._source: QuantizedKVCache | None = None

    @classmethod
    def adopt(cls, stock: QuantizedKVCache) -> RewindableQuantizedKVCache:
        """Move the rows out of `stock`, which `hand_back` refills."""
        cache = cls(stock.group_size, stock.bits)
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache._source = stock
        return cache

    def hand_back(self) -> QuantizedKVCache:
        stock = self._source or QuantizedKVCache(self.group_size, self.bits)
        stock.state = (self.keys, self.values, self.offset, self.group_size, self.bits)
        self.keys, self.values, self.offset = None, None, 0
        return stock

    def length(self) -> int:
        return int(self.offset)

    def can_trim(self, n: int, /) -> bool:
        return 0 <= n <= self.length()

    @override
    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        self.offset -= n
        return n

    def start_speculation(self) -> None:
        """Nothing to record: the rows stay where they are."""

    def stop_speculation(self) -> None:
        """Nothing was recorded."""

    def checkpoint(self) -> Callable[[], None]:
        offset = self.offset

        def go_back() -> None:
            self.offset = offset

        return go_back

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [*self.keys, *self.values]


def quantize(cache: RewindableKVCache, group_size: int, bits: int) -> RewindableQuantizedKVCache:
    """Quantise the rows of a cache, as mlx-lm does it; `cache` is empty afterwards."""
    return RewindableQuantizedKVCache.adopt(cache.hand_back().to_quantized(group_size, bits))
