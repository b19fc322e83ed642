"""Quantised full attention: as with plain rows, taking back moves the offset."""

from __future__ import annotations

from typing import final

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache

from speculate.backends.kv import RewindableKVCache
from speculate.backends.offset import TrimsByOffset
from speculate.errors import OptionError

Packed = tuple[mx.array, mx.array, mx.array]
"""Quantised rows, with their scales and biases."""


@final
class RewindableQuantizedKVCache(TrimsByOffset, QuantizedKVCache):
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
        self.refuse_while_owing()
        stock = self._source or QuantizedKVCache(self.group_size, self.bits)
        stock.state = (self.keys, self.values, self.offset, self.group_size, self.bits)
        self.keys, self.values = None, None
        self.offset: int = 0
        return stock

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [*self.keys, *self.values]


def quantize(cache: RewindableKVCache, group_size: int, bits: int) -> RewindableQuantizedKVCache:
    """A cache with the same rows quantised, as mlx-lm does it. `cache` stays as it is."""
    if cache.rows() != cache.offset:
        raise OptionError("a cache that starts late cannot be quantised: leave kv_bits out")
    packed = RewindableQuantizedKVCache(group_size, bits)
    if cache.keys is not None and cache.values is not None:
        packed.keys = mx.quantize(cache.keys, group_size=group_size, bits=bits)
        packed.values = mx.quantize(cache.values, group_size=group_size, bits=bits)
    packed.offset = cache.offset
    return packed
