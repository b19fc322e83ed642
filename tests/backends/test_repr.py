"""The `repr` of a cache says what it holds, and evaluates no array."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, KVCache

from speculate.backends.adopt import adopt
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import group_of, join
from speculate.backends.kv import RewindableKVCache, quantize
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.protocols import Entries


def rows(count: int) -> mx.array:
    return mx.zeros((1, 2, count, 64))


def test_rows_and_capacity_of_full_attention() -> None:
    first, second = join([RewindableKVCache(), RewindableKVCache()])
    second.update_and_fetch(rows(5), rows(5))
    assert repr(first) == "<RewindableKVCache: 0 tokens, layer 0, 0 rows>"
    assert repr(second) == "<RewindableKVCache: 5 tokens, layer 1, 5 of 256 rows>"
    assert repr(quantize(second, 64, 4)) == (
        "<RewindableQuantizedKVCache: 5 tokens, 5 of 256 rows>"
    )


def test_window_and_sinks() -> None:
    cache = RewindableRotatingKVCache(8, keep=4)
    cache.update_and_fetch(rows(5), rows(5))
    assert repr(cache).startswith("<RewindableRotatingKVCache: 5 tokens, window 8, 4 sinks, 5 of ")


def test_a_deferred_rewind_stays_deferred() -> None:
    def never(m: int) -> Entries:
        raise AssertionError("repr carried out the rewind")

    cache = RewindableArraysCache(2)
    assert repr(cache) == "<RewindableArraysCache: 0 tokens, 2 entries>"
    cache.start_speculation()
    cache.advance(4)
    cache.record_rollback(4, never, [None, None])
    assert repr(cache) == "<RewindableArraysCache: 4 tokens, 2 entries, 4 tokens recorded>"
    cache.trim(3)
    assert repr(cache) == "<RewindableArraysCache: 1 tokens, deferred rewind, 1 tokens recorded>"


def test_members_of_a_list_and_the_group() -> None:
    (cache,) = adopt([CacheList(KVCache(), KVCache())])
    member = "<RewindableKVCache: 0 tokens, 0 rows>"
    assert repr(cache) == f"<RewindableCacheList: 0 tokens, layer 0, {member}, {member}>"
    group = group_of([cache])
    assert group is not None
    assert repr(group) == "<CacheGroup: 1 caches, no window>"
    group.start()
    assert repr(group) == "<CacheGroup: 1 caches, 0 tokens fed>"


@pytest.mark.parametrize("kind", [RewindableKVCache, RewindableRotatingKVCache])
def test_no_array_is_evaluated(kind: type) -> None:
    cache = kind() if kind is RewindableKVCache else kind(8)
    cache.update_and_fetch(rows(5), rows(5))
    before = mx.get_active_memory()
    repr(cache)
    assert mx.get_active_memory() == before
