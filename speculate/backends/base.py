"""`BaseCache`, from which every rewindable cache derives, and what caches of rows share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, final

import mlx.core as mx
from typing_extensions import override

from speculate.backends.group import Grouped
from speculate.errors import RewindError

STEP: Final = 256
"""Rows that a buffer grows by, as in mlx-lm."""


@final
class NotSaved:
    """Part of a rewindable cache's `state`, so that mlx-lm refuses to save it and says why."""

    def __str__(self) -> str:
        return (
            "rewindable caches, which mlx-lm could not load again. Leave the speculation() block "
            "first, or save [cache.release() for cache in caches]"
        )


class BaseCache(Grouped, ABC):
    """A rewindable cache that belongs to a group: a subclass says how, and this class checks.

    A subclass derives from this class and then from mlx-lm's, and implements the abstract methods.
    The others are right for a cache that keeps every row.
    """

    _position: int = 0
    """Position of the first row in the sequence; not 0 in a cache that starts late."""
    _speculating: bool = False
    _undo: Callable[[], None] | None = None

    @abstractmethod
    def length(self) -> int: ...

    @abstractmethod
    def can_trim(self, n: int, /) -> bool: ...

    @abstractmethod
    def trim_rows(self, n: int, /) -> None:
        """Drop the last `n` tokens, `n >= 1`. All caches of the group were checked before."""

    @abstractmethod
    def checkpoint(self) -> Callable[[], None]: ...

    @abstractmethod
    def arrays(self) -> list[mx.array]: ...

    @abstractmethod
    def move_out(self) -> object:
        """Move the content into a cache of mlx-lm's own type and return it.

        `release` has checked that it can be moved.
        """

    def is_trimmable(self) -> bool:
        return True

    def start_speculation(self) -> None:
        self._speculating = True

    def stop_speculation(self) -> None:
        self._speculating = False

    def start_at(self, position: int, /) -> None:
        """Set the position of the first token, while the cache is empty. By default it stays 0."""

    def begin_block(self) -> None:
        """Begin a forward. By default a failed one is undone by restoring a checkpoint."""
        self._undo = self.checkpoint()

    @override
    def commit_block(self, num_tokens: int, /) -> None:
        self._undo = None

    @override
    def abort_block(self) -> None:
        if self._undo is not None:
            self._undo()
        self._undo = None

    @final
    def trim(self, n: int, /) -> int:
        """Drop the last `n` tokens and return `n`.

        Raises:
            RewindError: This cache, or another one of its group, cannot. Nothing was changed.
        """
        if not self.can_trim(n):
            raise RewindError(
                f"{type(self).__name__} cannot trim {n} tokens at length {self.length()}"
            )
        if self._group is not None:
            self._group.check_trim(self, n)
        if n:
            self.trim_rows(n)
        return n

    @final
    def release(self) -> object:
        """Move the content into a cache of mlx-lm's own type and return it.

        Raises:
            RewindError: Tokens wait for replay, or the cache started late. Nothing was changed.
        """
        if self._group is not None:
            self._group.require_replayed()
        if self._position:
            raise RewindError("a cache that started late has no counterpart in mlx-lm")
        return self.move_out()

    @property
    def state(self) -> tuple[list[mx.array], NotSaved]:
        """What loops written for mlx-lm evaluate. It loads only its own classes: `NotSaved`."""
        return self.arrays(), NotSaved()

    @state.setter
    def state(self, value: object) -> None:
        raise RewindError("load the state into mlx-lm's cache, and adopt that")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self._described())}>"

    def _described(self) -> list[str]:
        """Return facts for `repr`, known without evaluating an array."""
        members = [] if self._group is None else self._group.members()
        layer = [f"layer {index}" for index, member in enumerate(members) if member is self]
        return [f"{self.length()} tokens", *layer]


class OffsetCache(BaseCache):
    """A cache of mlx-lm that keeps every row, so that a trim only moves its `offset`."""

    offset: int

    @override
    def is_notified(self) -> bool:
        # The group undoes a failed forward by a trim. A subclass may need more.
        kinds = type(self), BaseCache
        own, default = ((k.begin_block, k.commit_block, k.abort_block) for k in kinds)
        return own != default

    def rows(self) -> int:
        """Return the number of rows stored."""
        return self.offset - self._position

    def length(self) -> int:
        return self.offset

    def can_trim(self, n: int, /) -> bool:
        return 0 <= n <= self.rows()

    def trim_rows(self, n: int, /) -> None:
        self.offset -= n

    def checkpoint(self) -> Callable[[], None]:
        return partial(setattr, self, "offset", self.offset)

    @override
    def _described(self) -> list[str]:
        held = self.arrays()
        capacity = f" of {held[0].shape[-2]}" if held else ""
        return [*super()._described(), f"{self.rows()}{capacity} rows"]


def grow(buffer: mx.array | None, like: mx.array, used: int, needed: int) -> mx.array:
    """Return a buffer `(1, heads, capacity, width)` in which `needed` rows fit.

    Its first `used` rows are those of `buffer`, which is returned itself if it is large enough;
    `like`, `(1, heads, T, width)`, gives heads, width and dtype.
    """
    if buffer is not None and needed <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = like.shape
    capacity = -(-needed // STEP) * STEP
    fresh = mx.zeros((batch, heads, capacity - used, width), dtype=like.dtype)
    return fresh if buffer is None else mx.concatenate([buffer[..., :used, :], fresh], axis=2)
