"""A backend for mlx-lm's `ChunkedKVCache`, the cache of Llama 4's chunked attention.

Before each forward Llama 4 drops the rows that no step can see any more. A rollback may need some
of them again, so while speculating this cache keeps 64 rows more.
"""

from collections.abc import Callable
from functools import partial
from typing import final

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache
from typing_extensions import override

from speculate.backends.base import BaseCache
from speculate.backends.group import RECORD_WINDOW

Content = tuple[mx.array | None, mx.array | None, int, int, int]


@final
class RewindableChunkedKVCache(BaseCache, ChunkedKVCache):
    """`ChunkedKVCache` whose trim is exact or an error."""

    def __init__(self, chunk_size: int) -> None:
        ChunkedKVCache.__init__(self, chunk_size)
        self._source: ChunkedKVCache | None = None

    @classmethod
    def adopt(cls, stock: object) -> "RewindableChunkedKVCache":
        assert isinstance(stock, ChunkedKVCache)
        cache = cls(stock.chunk_size)
        cache._fill(stock.state)
        cache._source = stock
        stock.state = (None, None, 0, stock.chunk_size, 0)
        return cache

    def move_out(self) -> ChunkedKVCache:
        stock = self._source or ChunkedKVCache(self.chunk_size)
        stock.state = self._content()
        self._fill((None, None, 0, self.chunk_size, 0))
        return stock

    def _content(self) -> Content:
        """Return what mlx-lm's `state` holds; a rewindable cache's own `state` cannot be saved."""
        return self.keys, self.values, self.offset, self.chunk_size, self.start_position

    def _fill(self, content: Content) -> None:
        self.keys, self.values, self.offset, self.chunk_size, self.start_position = content

    @override
    def maybe_trim_front(self) -> None:
        size = self.chunk_size
        self.chunk_size = size + (RECORD_WINDOW if self._speculating else 0)
        ChunkedKVCache.maybe_trim_front(self)
        self.chunk_size = size

    def length(self) -> int:
        return self.offset

    def can_trim(self, n: int, /) -> bool:
        length = self.length() - n
        chunk = length // self.chunk_size * self.chunk_size  # start of the next token's chunk
        return n == 0 or (n > 0 and length >= 0 and self.start_position <= chunk)

    def trim_rows(self, n: int, /) -> None:
        self.offset -= n

    def checkpoint(self) -> Callable[[], None]:
        # By reference: valid rows are never written again, only rows after them.
        return partial(self._fill, self._content())

    def arrays(self) -> list[mx.array]:
        return [rows for rows in self._content()[:2] if rows is not None]
