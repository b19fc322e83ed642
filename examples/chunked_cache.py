"""A backend for mlx-lm's `ChunkedKVCache`, the cache of Llama 4's chunked attention.

Before each forward Llama 4 drops the rows that no step can see any more. A rollback may need some
of them again, so while speculating this cache keeps 64 rows more.
"""

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache
from typing_extensions import override

from speculate.backends.base import TrimsByOffset
from speculate.backends.group import RECORD_WINDOW, AbandonsByCheckpoint

Content = tuple[mx.array | None, mx.array | None, int, int, int]


@final
class RewindableChunkedKVCache(AbandonsByCheckpoint, TrimsByOffset, ChunkedKVCache):
    """`ChunkedKVCache` whose trim is exact or an error."""

    def __init__(self, chunk_size: int) -> None:
        ChunkedKVCache.__init__(self, chunk_size)
        self._recording = False
        self._source: ChunkedKVCache | None = None

    @classmethod
    def adopt(cls, stock: object) -> "RewindableChunkedKVCache":
        assert isinstance(stock, ChunkedKVCache)
        cache = cls(stock.chunk_size)
        cache._fill(stock.state)
        cache._source = stock
        stock.state = (None, None, 0, stock.chunk_size, 0)
        return cache

    def release(self) -> ChunkedKVCache:
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
        self.chunk_size = size + (RECORD_WINDOW if self._recording else 0)
        ChunkedKVCache.maybe_trim_front(self)
        self.chunk_size = size

    @override
    def can_trim(self, n: int, /) -> bool:
        length = self.length() - n
        chunk = length // self.chunk_size * self.chunk_size  # start of the next token's chunk
        return n == 0 or (n > 0 and length >= 0 and self.start_position <= chunk)

    @override
    def start_speculation(self) -> None:
        self._recording = True

    @override
    def stop_speculation(self) -> None:
        self._recording = False

    @override
    def checkpoint(self) -> Callable[[], None]:
        # By reference: valid rows are never written again, only rows after them.
        before = self._content()

        def restore() -> None:
            self._fill(before)

        return restore

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]
