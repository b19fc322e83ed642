"""What a cache must do as one of a list: be taken back with the others, and start late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import mlx.core as mx

from speculate.backends.group import Grouped, StartsLate, join
from speculate.protocols import Rollbackable
from speculate.testing.broken import law, require
from speculate.testing.feeding import Fed
from speculate.testing.kinds import CacheKind, forward
from speculate.testing.layers import VOCAB

LATE: Final = 40


@law
def a_list_is_taken_back_together_or_not_at_all(kind: CacheKind) -> None:
    """One cache cannot follow; so no other of its group takes anything back."""
    fed = Fed(kind, 12)
    stubborn = Stubborn(fed.caches[0])
    grouped = [cache for cache in fed.caches if isinstance(cache, Grouped)]
    require(len(grouped) == len(fed.caches), "is no member of a group: see GroupMember")
    join([*fed.caches, stubborn])
    fed.start()
    fed.feed(0, 3)
    fed.refuses(3)
    fed.check_lengths()
    stubborn.gives_way = True
    fed.trim(3)
    fed.feed(2)


@law
def a_late_cache_starts_at_its_position(kind: CacheKind) -> None:
    """Its first row stands for a later position, and nothing before can be taken back."""
    caches = kind.make()
    if not all(isinstance(cache, StartsLate) for cache in caches):
        return
    for cache in caches:
        if isinstance(cache, StartsLate):
            cache.start_at(LATE)
    for cache in caches:
        cache.start_speculation()
    lengths = [cache.length() for cache in caches]
    require(lengths == [LATE] * len(caches), f"lengths are {lengths}, and nothing was fed")
    for width in (5, 1):
        first = _feed_late(kind, caches, width)
        lengths = [cache.length() for cache in caches]
        require(lengths == [LATE + width] * len(caches), f"lengths are {lengths} after {width}")
        for cache in caches:
            require(not cache.can_trim(width + 1), "says that it can go back behind its start")
            cache.trim(width)
        same = bool(mx.array_equal(first, _feed_late(kind, caches, width)))
        require(same, "what was fed again is seen differently")
        for cache in caches:
            cache.trim(width)


def _feed_late(kind: CacheKind, caches: list[Rollbackable], width: int) -> mx.array:
    found = forward(kind.layers, caches, mx.arange(width)[None] % VOCAB)
    mx.eval(found)
    return found


@final
class Stubborn:
    """Is as long as another cache, and takes nothing back until it gives way."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache
        self.gives_way = False

    def length(self) -> int:
        return self._cache.length()

    def is_trimmable(self) -> bool:
        return True

    def can_trim(self, n: int, /) -> bool:
        return self.gives_way or n == 0

    def trim(self, n: int, /) -> int:
        return n

    def start_speculation(self) -> None:
        """Records nothing."""

    def stop_speculation(self) -> None:
        """Recorded nothing."""

    def checkpoint(self) -> Callable[[], None]:
        return lambda: None

    def arrays(self) -> list[mx.array]:
        return []

    def hand_back(self) -> object:
        return self
