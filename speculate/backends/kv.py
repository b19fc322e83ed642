"""Full attention, plain and quantised: every row is kept, so a trim only moves the offset."""

from __future__ import annotations

from typing import final

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache, create_attention_mask
from typing_extensions import override

from speculate.backends.base import OffsetCache, grow
from speculate.errors import OptionError

Packed = tuple[mx.array, mx.array, mx.array]
"""Quantised rows, their scales and their biases."""


@final
class RewindableKVCache(OffsetCache, KVCache):
    """`KVCache` whose trim is exact or an error.

    Args:
        position: Position of the first row in the sequence. Not 0 only in a cache that starts
            late: its rows then carry their true positions.
    """

    def __init__(self, position: int = 0) -> None:
        KVCache.__init__(self)
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = position
        self._position = position
        self._source: KVCache | None = None

    @classmethod
    def adopt(cls, stock: KVCache, length: int = 0, /) -> RewindableKVCache:
        """Move the rows out of `stock`, which `release` refills."""
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache._source = stock
        return cache

    def move_out(self) -> KVCache:
        stock = self._source or KVCache()
        stock.keys, stock.values, stock.offset = self.keys, self.values, self.offset
        self.keys, self.values, self.offset = None, None, 0
        return stock

    @override
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = self.rows()
        end = rows + keys.shape[2]
        self.keys = grow(self.keys, keys, rows, end)
        self.values = grow(self.values, values, rows, end)
        self.keys[..., rows:end, :] = keys
        self.values[..., rows:end, :] = values
        self.offset += keys.shape[2]
        return self.keys[..., :end, :], self.values[..., :end, :]

    @override
    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        mask: mx.array | str | None = create_attention_mask(
            N, self.rows(), return_array, window_size
        )
        return mask

    @override
    def start_at(self, position: int, /) -> None:
        self._position = position
        self.offset: int = position

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]


@final
class RewindableQuantizedKVCache(OffsetCache, QuantizedKVCache):
    """`QuantizedKVCache` whose trim is exact or an error."""

    keys: Packed | None  # type: ignore[assignment]  # mlx-lm's are inferred too narrow
    values: Packed | None  # type: ignore[assignment]

    def __init__(self, group_size: int = 64, bits: int = 8) -> None:
        QuantizedKVCache.__init__(self, group_size=group_size, bits=bits)
        self._source: QuantizedKVCache | None = None

    @classmethod
    def adopt(cls, stock: QuantizedKVCache, length: int = 0, /) -> RewindableQuantizedKVCache:
        """Move the rows out of `stock`, which `release` refills."""
        cache = cls(stock.group_size, stock.bits)
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache._source = stock
        return cache

    def move_out(self) -> QuantizedKVCache:
        stock = self._source or QuantizedKVCache(self.group_size, self.bits)
        stock.state = (self.keys, self.values, self.offset, self.group_size, self.bits)
        self.keys, self.values = None, None
        self.offset: int = 0
        return stock

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [*self.keys, *self.values]


def quantize(cache: RewindableKVCache, group_size: int, bits: int) -> RewindableQuantizedKVCache:
    """Return a cache with the same rows quantised, as mlx-lm does it. `cache` is unchanged.

    Args:
        cache: Rows in floating point.
        group_size: Numbers that share a scale.
        bits: Bits a number.

    Raises:
        OptionError: The cache starts late.
    """
    if cache.rows() != cache.offset:
        raise OptionError("a cache that starts late cannot be quantised: leave kv_bits out")
    packed = RewindableQuantizedKVCache(group_size, bits)
    if cache.keys is not None and cache.values is not None:
        packed.keys = mx.quantize(cache.keys, group_size=group_size, bits=bits)
        packed.values = mx.quantize(cache.values, group_size=group_size, bits=bits)
    packed.offset = cache.offset
    return packed
