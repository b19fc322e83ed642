"""What a group does for caches that implement `Rollbackable` alone, and which it notifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache
from typing_extensions import override

from speculate import speculation
from speculate.backends.adopt import adopt, release
from speculate.backends.base import OffsetCache
from speculate.backends.group import CacheGroup, group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.errors import RewindError
from speculate.protocols import Rollbackable
from tests.support.cache_contents import write


@final
class Bare:
    """Rows that know of no group."""

    def __init__(self) -> None:
        self.rows = RewindableKVCache()
        self.calls: list[str] = []
        self.whole = False

    def length(self) -> int:
        return self.rows.length()

    def is_trimmable(self) -> bool:
        return True

    def can_trim(self, n: int, /) -> bool:
        return n == 0 or (not self.whole and self.rows.can_trim(n))

    def trim(self, n: int, /) -> int:
        self.calls.append(f"trim {n}")
        return self.rows.trim(n)

    def start_speculation(self) -> None:
        self.calls.append("start")

    def stop_speculation(self) -> None:
        self.calls.append("stop")

    def checkpoint(self) -> Callable[[], None]:
        return self.rows.checkpoint()

    def arrays(self) -> list[mx.array]:
        return self.rows.arrays()

    def release(self) -> object:
        return self.rows.release()


def feed(caches: Sequence[Rollbackable], count: int, *, fail: bool = False) -> None:
    with group(caches).block(mx.zeros((1, count), dtype=mx.uint32)) as fed:
        for cache in caches:
            write(cache.rows if isinstance(cache, Bare) else cache, mx.ones((1, 1, fed.size, 4)))
            if fail:
                raise ZeroDivisionError


def group(caches: Sequence[Rollbackable]) -> CacheGroup:
    found = group_of(caches)
    assert found is not None
    return found


def pair(bare: Bare) -> list[Rollbackable]:
    caches: list[Rollbackable] = [bare, RewindableKVCache()]
    return join(caches)


def lengths(caches: Sequence[Rollbackable]) -> list[int]:
    return [cache.length() for cache in caches]


def test_they_are_rewound_with_their_group() -> None:
    bare = Bare()
    caches = pair(bare)
    with speculation(caches) as window:
        feed(caches, 5)
        window.keep(2)
        assert lengths(caches) == [2, 2]
        feed(caches, 4)
    assert lengths(caches) == [2, 2]
    assert bare.calls[:3] == ["start", "trim 3", "start"]
    assert bare.calls[-1] == "stop"


def test_a_failed_forward_is_undone_by_a_trim() -> None:
    bare = Bare()
    caches = pair(bare)
    feed(caches, 3)
    with pytest.raises(ZeroDivisionError):
        feed(caches, 4, fail=True)
    assert lengths(caches) == [3, 3]
    assert bare.calls == ["trim 4"]


def test_a_list_is_not_released_while_tokens_wait_for_replay() -> None:
    """None of the caches, though the first one does not know that any do."""
    bare = Bare()
    bare.whole = True
    caches = pair(bare)
    feed(caches, 3)
    with speculation(caches) as window:
        feed(caches, 5)
        window.keep(2)
    assert lengths(caches) == [3, 3]
    with pytest.raises(RewindError, match="the last 2 tokens"):
        release(caches)
    assert lengths(caches) == [3, 3]
    with group(caches).replaying() as tokens:
        for cache in caches:
            write(cache.rows if isinstance(cache, Bare) else cache, mx.ones((1, 1, tokens.size, 4)))
    stock = release(caches)
    assert [cache.offset for cache in stock if isinstance(cache, KVCache)] == [5, 5]


class NotifiedRows(OffsetCache, KVCache):
    """Rows that do something where a forward begins."""

    def __init__(self) -> None:
        KVCache.__init__(self)
        self.began = 0

    @override
    def begin_block(self) -> None:
        super().begin_block()
        self.began += 1

    def arrays(self) -> list[mx.array]:
        return []

    def move_out(self) -> object:
        return KVCache()


def test_a_cache_is_notified_of_blocks_if_its_class_does_anything_then() -> None:
    plain, notified = RewindableKVCache(), NotifiedRows()
    caches: list[Rollbackable] = [plain, notified]
    assert (plain.is_notified(), notified.is_notified()) == (False, True)
    feed(join(caches), 3)
    assert notified.began == 1


def test_they_are_adopted_as_they_are() -> None:
    bare = Bare()
    adopted = adopt([bare, KVCache()])
    assert adopted[0] is bare
    assert group(adopted).members() == adopted
