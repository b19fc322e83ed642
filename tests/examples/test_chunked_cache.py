"""The example of a backend, proved by the tests that its author would inherit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache

from examples.chunked_cache import RewindableChunkedKVCache
from speculate.protocols import Rollbackable
from speculate.testing import CacheTests
from speculate.testing.layers import AttentionLayer, Layer, Mask

CHUNK = 8


def chunk_mask(cache: object, count: int) -> Mask:
    """As Llama 4 makes it, and drops rows before: a token sees its own chunk."""
    chunked = cast(ChunkedKVCache, cache)
    chunked.maybe_trim_front()
    end = chunked.offset + count
    columns, rows = mx.arange(chunked.start_position, end), mx.arange(chunked.offset, end)[:, None]
    return (columns // CHUNK == rows // CHUNK) & (columns <= rows)


class TestChunkedCache(CacheTests):
    def make_cache(self) -> Rollbackable:
        return RewindableChunkedKVCache(CHUNK)

    def adopt(self, stock: object, /) -> Rollbackable:
        return RewindableChunkedKVCache.adopt(stock)

    def layers(self) -> Sequence[Layer]:
        return [AttentionLayer(chunk_mask)]
