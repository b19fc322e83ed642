"""Code shared by backends that store rows: checked trims, and buffers that grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import mlx.core as mx
from typing_extensions import override

from speculate.backends.group import CacheGroup, CanTrim, GroupMember
from speculate.errors import RewindError
from speculate.protocols import Rollbackable

STEP: Final = 256
"""Rows that a buffer grows by, as in mlx-lm."""


def check_trim(cache: CanTrim, group: CacheGroup | None, n: int) -> None:
    """Refuse a trim that this cache, or another member of its group, could not do.

    Raises:
        RewindError: Nothing was changed.
    """
    if not cache.can_trim(n):
        raise RewindError(
            f"{type(cache).__name__} cannot trim {n} tokens at length {cache.length()}"
        )
    if group is not None:
        group.check_trim(cache, n)


def grow(buffer: mx.array | None, like: mx.array, used: int, needed: int) -> mx.array:
    """Return a buffer of at least `needed` rows whose first `used` are those of `buffer`.

    Args:
        buffer: `(1, heads, capacity, width)`, or `None` to begin with.
        like: `(1, heads, T, width)`, for shape and dtype.
        used: Valid rows of `buffer`.
        needed: Rows that must fit.

    Returns:
        `(1, heads, capacity, width)`: `buffer` itself if it is large enough.
    """
    if buffer is not None and needed <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = like.shape
    capacity = -(-needed // STEP) * STEP
    fresh = mx.zeros((batch, heads, capacity - used, width), dtype=like.dtype)
    return fresh if buffer is None else mx.concatenate([buffer[..., :used, :], fresh], axis=2)


class TrimsByOffset(GroupMember):
    """Mixin for a cache of mlx-lm whose `offset` is the number of valid rows."""

    offset: int
    _position = 0
    """Position of the first row in the sequence."""

    def rows(self) -> int:
        """Return the number of rows stored."""
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
        """Do nothing: trimmed rows stay in the buffer."""

    def stop_speculation(self) -> None:
        """Do nothing: nothing was recorded."""

    def checkpoint(self) -> Callable[[], None]:
        offset = self.offset

        def restore() -> None:
            self.offset = offset

        return restore

    @override
    def _described(self) -> list[str]:
        held = cast(Rollbackable, self).arrays()
        capacity = f" of {held[0].shape[-2]}" if held else ""
        return [*super()._described(), f"{self.rows()}{capacity} rows"]
