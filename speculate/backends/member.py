"""What a cache may be, besides rewindable: one of a group, a writer in blocks, a late start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.errors import RewindError

if TYPE_CHECKING:
    from speculate.backends.group import CacheGroup


@final
class NotSaved:
    """In the `state` of a rewindable cache: mlx-lm refuses to save it, and says why."""

    def __str__(self) -> str:
        return (
            "caches that can take tokens back, which mlx-lm could not load again. Leave the "
            "speculation() block first, so that the list holds mlx-lm's caches, or save "
            "[cache.hand_back() for cache in caches]"
        )


class GroupMember:
    """Mixed into a cache that belongs to a `CacheGroup`. Holds nothing but the group."""

    _group: CacheGroup | None = None

    def arrays(self) -> list[mx.array]:
        """Every array the cache holds; see `Rollbackable`."""
        raise NotImplementedError

    @property
    def state(self) -> tuple[list[mx.array], NotSaved]:
        """What loops written for mlx-lm evaluate.

        mlx-lm's `save_prompt_cache` writes the name of a cache's class into its file, and finds
        only its own classes again. So it is stopped from saving this one.
        """
        return self.arrays(), NotSaved()

    @state.setter
    def state(self, value: object) -> None:
        raise RewindError("load the state into mlx-lm's cache, and adopt that")

    def group(self) -> CacheGroup | None:
        """The caches that are rewound together with this one."""
        return self._group

    def join(self, group: CacheGroup, /) -> None:
        """Become one of `group`."""
        self._group = group

    def refuse_while_owing(self) -> None:
        """Keep tokens that are in no cache from getting lost.

        Raises:
            RewindError: Some are owed. Nothing was changed.
        """
        owed = None if self._group is None else self._group.owed()
        if owed is not None:
            raise RewindError(
                f"the last {owed.shape[1]} tokens that were kept are in no cache yet, because some "
                "layer can only take whole blocks back: the next model.forward on these caches "
                "takes them in. Feed it before you hand them back."
            )


@runtime_checkable
class Grouped(Protocol):
    """A cache that knows its group."""

    def group(self) -> CacheGroup | None:
        """The caches that are rewound together with this one."""

    def join(self, group: CacheGroup, /) -> None:
        """Become one of `group`."""


class CanTrim(Protocol):
    """What a check before a trim asks of a cache."""

    def length(self) -> int:
        """Tokens fed so far and not taken back."""

    def can_trim(self, n: int, /) -> bool:
        """Whether `trim(n)` would succeed now."""


@runtime_checkable
class WritesInBlocks(Protocol):
    """A cache that needs to know where a forward begins and ends.

    State caches do: their layer overwrites what would be needed to get back.
    """

    def open_block(self) -> None:
        """A forward begins."""

    def close_block(self, num_tokens: int, /) -> None:
        """The forward is over, and fed `num_tokens` tokens."""

    def abandon_block(self) -> None:
        """The forward failed: be as `open_block` found you. Without one: do nothing."""


class AbandonsByCheckpoint(ABC):
    """Mixed into a cache that drops rows: a failed forward is undone by reference."""

    _undo: Callable[[], None] | None = None

    @abstractmethod
    def checkpoint(self) -> Callable[[], None]:
        """Hold on to the present, by reference; calling the result returns to it."""

    def open_block(self) -> None:
        """A forward begins."""
        self._undo = self.checkpoint()

    def close_block(self, num_tokens: int, /) -> None:
        """The forward is over."""
        self._undo = None

    def abandon_block(self) -> None:
        """The forward failed."""
        if self._undo is not None:
            self._undo()
        self._undo = None


@runtime_checkable
class StartsLate(Protocol):
    """A cache whose first row may stand for a later position than 0."""

    def start_at(self, position: int, /) -> None:
        """Say which text position the next token has. Only while the cache is empty."""
