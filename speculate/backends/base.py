"""What the backends that store rows share: checked trims, and buffers that grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import mlx.core as mx

from speculate.backends.group import CacheGroup, CanTrim, GroupMember
from speculate.errors import RewindError

STEP: Final = 256
"""Rows that a buffer grows by, as mlx-lm's do."""


def check_trim(cache: CanTrim, group: CacheGroup | None, n: int) -> None:
    """Refuse a trim that this cache, or another of its group, could not do.

    Raises:
        RewindError: Nothing was changed.
    """
    if not cache.can_trim(n):
        raise RewindError(
            f"{type(cache).__name__} cannot take back {n} tokens at length {cache.length()}"
        )
    if group is not None:
        group.check_trim(cache, n)


def grown(buffer: mx.array | None, like: mx.array, used: int, needed: int) -> mx.array:
    """A buffer of at least `needed` rows whose first `used` are those of `buffer`.

    Args:
        buffer: `(1, heads, capacity, width)`, or `None` to begin with.
        like: `(1, heads, T, width)`, for shape and dtype.
        used: Rows of `buffer` that count.
        needed: Rows that must fit.

    Returns:
        `buffer` itself where it is large enough.
    """
    if buffer is not None and needed <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = like.shape
    capacity = -(-needed // STEP) * STEP
    fresh = mx.zeros((batch, heads, capacity - used, width), dtype=like.dtype)
    return fresh if buffer is None else mx.concatenate([buffer[..., :used, :], fresh], axis=2)


class TrimsByOffset(GroupMember):
    """Mixed into a cache of mlx-lm whose `offset` says how many rows count."""

    offset: int
    _position = 0
    """Text position of the first row."""

    def rows(self) -> int:
        """Rows stored."""
        return self.offset - self._position

    def length(self) -> int:
        return self.offset

    def can_trim(self, n: int, /) -> bool:
        return 0 <= n <= self.rows()

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        self.offset -= n
        return n

    def start_speculation(self) -> None:
        """Nothing to record: the rows stay where they are."""

    def stop_speculation(self) -> None:
        """Nothing was recorded."""

    def checkpoint(self) -> Callable[[], None]:
        offset = self.offset

        def go_back() -> None:
            self.offset = offset

        return go_back
