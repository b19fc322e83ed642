"""Full attention: every row is kept, so taking back moves the offset."""

from __future__ import annotations

from typing import final

import mlx.core as mx
from mlx_lm.models.cache import KVCache, create_attention_mask
from typing_extensions import override

from speculate.backends.offset import TrimsByOffset
from speculate.backends.rows import grown
from speculate.errors import RewindError


@final
class RewindableKVCache(TrimsByOffset, KVCache):
    """`KVCache` whose trim is exact or an error.

    Args:
        position: Text position of the first row. Not 0 only in a cache that starts late:
            its rows then carry their true positions.
    """

    def __init__(self, position: int = 0) -> None:
        KVCache.__init__(self)
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = position
        self._position = position
        self._source: KVCache | None = None

    @classmethod
    def adopt(cls, stock: KVCache) -> RewindableKVCache:
        """Move the rows out of `stock`, which `hand_back` refills."""
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache._source = stock
        return cache

    def hand_back(self) -> KVCache:
        self.refuse_while_owing()
        if self._position:
            raise RewindError("a cache that started late has no equal among mlx-lm's caches")
        stock = self._source or KVCache()
        stock.keys, stock.values, stock.offset = self.keys, self.values, self.offset
        self.keys, self.values, self.offset = None, None, 0
        return stock

    @override
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = self.rows()
        end = rows + keys.shape[2]
        self.keys = grown(self.keys, keys, rows, end)
        self.values = grown(self.values, values, rows, end)
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

    def start_at(self, position: int, /) -> None:
        self._position = position
        self.offset: int = position

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]
