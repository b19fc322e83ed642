"""Which caches belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from speculate.backends.group import CacheGroup
from speculate.backends.member import Grouped, GroupMember
from speculate.protocols import Rollbackable

CacheT = TypeVar("CacheT", bound=Rollbackable)


def join(caches: Sequence[CacheT]) -> list[CacheT]:
    """Make caches one group: what is taken back from one is taken back from all."""
    group = CacheGroup(caches)
    members: list[object] = list(caches)
    for member in members:
        if isinstance(member, Grouped):
            member.join(group)
    return list(caches)


def group_of(caches: Sequence[object]) -> CacheGroup | None:
    """The group that the caches of a list belong to; `None` for caches of mlx-lm."""
    for cache in caches:
        # The class first: asking for a protocol is slow, and this is asked once a forward.
        if isinstance(cache, (GroupMember, Grouped)):
            return cache.group()
    return None
