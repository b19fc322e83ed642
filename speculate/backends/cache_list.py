"""Several caches of one layer, rewound together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import mlx.core as mx
from mlx_lm.models.cache import CacheList
from typing_extensions import override

from speculate.backends.base import BaseCache
from speculate.protocols import Rollbackable


@final
class RewindableCacheList(BaseCache, CacheList):
    """`CacheList` of rewindable caches.

    Args:
        members: The caches, in the order that the layer indexes them.
        source: The cache of mlx-lm that `release` refills.
    """

    def __init__(self, members: Sequence[Rollbackable], source: CacheList | None = None) -> None:
        CacheList.__init__(self, *members)
        self._members = list(members)
        own = [member for member in members if isinstance(member, BaseCache)]
        self._notified = [member for member in own if member.is_notified()]
        self._source = source

    def move_out(self) -> CacheList:
        members = [member.release() for member in self._members]
        stock = self._source or CacheList()
        stock.caches = tuple(members)
        return stock

    def length(self) -> int:
        return max(member.length() for member in self._members)

    @override
    def is_trimmable(self) -> bool:
        return all(member.is_trimmable() for member in self._members)

    def can_trim(self, n: int, /) -> bool:
        return all(member.can_trim(n) for member in self._members)

    def trim_rows(self, n: int, /) -> None:
        for member in self._members:
            member.trim(n)

    @override
    def start_speculation(self) -> None:
        for member in self._members:
            member.start_speculation()

    @override
    def stop_speculation(self) -> None:
        for member in self._members:
            member.stop_speculation()

    @override
    def begin_block(self) -> None:
        for member in self._notified:
            member.begin_block()

    @override
    def commit_block(self, num_tokens: int, /) -> None:
        for member in self._notified:
            member.commit_block(num_tokens)

    @override
    def abort_block(self) -> None:
        for member in self._notified:
            member.abort_block()
        # The layer may have failed after some of its members were written.
        shortest = min(member.length() for member in self._members)
        for cache in self._members:
            cache.trim(cache.length() - shortest)

    @override
    def start_at(self, position: int, /) -> None:
        for member in self._members:
            if isinstance(member, BaseCache):
                member.start_at(position)

    def checkpoint(self) -> Callable[[], None]:
        checkpoints = [member.checkpoint() for member in self._members]

        def restore() -> None:
            for restore_member in checkpoints:
                restore_member()

        return restore

    def arrays(self) -> list[mx.array]:
        return [array for member in self._members for array in member.arrays()]

    @override
    def _described(self) -> list[str]:
        return [*super()._described(), *map(repr, self._members)]
