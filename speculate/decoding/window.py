"""One rewind over all caches that a loop feeds: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from speculate.backends.group import CacheGroup, group_of
from speculate.errors import OptionError, RewindError
from speculate.protocols import Rollbackable


@final
class Window:
    """Tokens fed since the last kept point, in every cache of one or more groups.

    Made by `speculation`. Several models' caches may share a window: a member that was
    fed fewer tokens than are kept keeps what it has.
    """

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = list(groups)

    def fed(self) -> int:
        """Most tokens that a member was fed since the kept point."""
        return max((group.fed() for group in self._groups), default=0)

    def keep(self, m: int, /) -> None:
        """Keep the first `m` tokens fed since the kept point, and take the rest back.

        What is kept becomes the new kept point, and the window goes on.

        Raises:
            RewindError: `m` is negative or more than was fed, or a layer cannot go back so
                far. Every layer is checked first, and nothing was changed.
        """
        if not 0 <= m <= self.fed():
            raise RewindError(f"cannot keep {m} tokens: {self.fed()} were fed")
        plans = [group.plan_keep(m) for group in self._groups]
        for group, plan in zip(self._groups, plans, strict=True):
            group.apply_keep(m, plan)


@contextmanager
def speculation(*caches: list[Rollbackable]) -> Iterator[Window]:
    """Feed tokens that may be taken back again.

    Leaving the block, also by an exception, takes back whatever was fed after the last
    `keep`.

    Args:
        caches: Each a whole list from a model's or a head's `make_cache`, or from `adopt`.

    Raises:
        OptionError: A list is empty, or holds caches of mlx-lm that nobody adopted.
    """
    groups = [_group(cache) for cache in caches]
    for group in groups:
        group.start()
    try:
        yield Window(groups)
    finally:
        for group in groups:
            group.restore()
            group.stop()


def _group(cache: Sequence[Rollbackable]) -> CacheGroup:
    group = group_of(cache)
    if group is None:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in cache})) or "nothing"
        raise OptionError(
            f"speculation needs caches that can take tokens back, got {kinds}. Make the list "
            "with model.make_cache(), or turn mlx-lm's into one with model.adopt(cache)."
        )
    return group
