"""Rewinds all caches that a decoding loop feeds: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

from speculate.backends.group import CacheGroup, group_of, required_group
from speculate.decoding.cache_loan import CacheLoan
from speculate.errors import OptionError, RewindError
from speculate.protocols import Rollbackable
from speculate.validation import validated_integer


@final
class Window:
    """The tokens fed since the last kept point, in all caches of one or more models.

    Created by `speculation`. If several models share a window, a model that was fed fewer than
    `m` tokens loses none of them in `keep(m)`.
    """

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = list(groups)
        self._over = False

    def fed(self) -> int:
        """Return the most tokens that any cache was fed since the kept point.

        Raises:
            RewindError: The window was closed.
        """
        self._refuse_if_over()
        return max((group.fed() for group in self._groups), default=0)

    def keep(self, m: int, /) -> None:
        """Keep the first `m` tokens fed since the kept point, and roll the rest back.

        The new kept point is after these tokens, and the window stays open.

        Raises:
            RewindError: `m` is negative or more than was fed, a layer cannot rewind that far,
                or the window was closed. Every layer is checked first, so nothing was changed.
        """
        m = validated_integer("m", m)
        if not 0 <= m <= self.fed():
            raise RewindError(
                f"cannot keep {m} tokens: {self.fed()} were fed since the kept point. Feed with "
                "model.forward of a model from speculate.load or adapt, inside the block."
            )
        for group in self._groups:
            group.keep(m)

    def leave(self) -> None:
        """Close the window: refuse later calls, because the caches may be in another window."""
        self._over = True

    def _refuse_if_over(self) -> None:
        if self._over:
            raise RewindError(
                "this window was left: tokens that were not kept were rolled back when its with "
                "block ended. Use the window of an open block, or open one with speculation()"
            )


@contextmanager
def speculation(*caches: Sequence[object]) -> Iterator[Window]:
    """Open a window, in which fed tokens can be rolled back.

    Leaving the `with` block, normally or by an exception, rolls back all tokens fed after the
    last `keep`. In lists of mlx-lm's caches, entries are swapped for rewindable caches and
    restored on exit.

    Args:
        caches: Lists of caches, each the whole list of a model or a head.

    Yields:
        The window.

    Raises:
        CannotRewindError: A layer's cache is of an unsupported kind.
        OptionError: No list was given, an argument is not a list, or a cache occurs twice.
    """
    if not caches:
        raise OptionError("speculation needs at least one model's list of caches")
    _require_lists(caches)
    # Imports mlx-lm, which a caller with caches has loaded already.
    from speculate.backends.adopt import refuse_shared

    refuse_shared(*caches)
    with ExitStack() as stack:
        window = Window([stack.enter_context(_recorded(cache)) for cache in caches])
        stack.callback(window.leave)
        yield window


def _require_lists(caches: Sequence[object]) -> None:
    for given in caches:
        if not isinstance(given, Sequence):
            kind = type(given).__name__
            raise OptionError(
                f"speculation needs a list of caches, from model.make_cache(); got {kind}"
            )


@contextmanager
def _recorded(caches: Sequence[object]) -> Iterator[CacheGroup]:
    """Record one list of caches, and restore its last kept point on exit."""
    group = group_of(caches)
    if group is None:
        with _adopted(caches) as adopted, _opened(required_group(adopted, "these")) as group:
            yield group
    else:
        with _opened(group):
            yield group


@contextmanager
def _opened(group: CacheGroup) -> Iterator[CacheGroup]:
    """Open a window on a group, and restore its last kept point on exit."""
    group.require_no_window()
    try:
        try:
            group.start()
            yield group
        finally:
            _leave(group)
    finally:
        # Finishes the work if an interrupt cut the first attempt short.
        _leave(group)


def _leave(group: CacheGroup) -> None:
    try:
        group.rewind()
    except Exception:
        group.stop()
        raise
    # Not after an interrupt: what was not kept still has to be rolled back.
    group.stop()


@contextmanager
def _adopted(caches: Sequence[object]) -> Iterator[list[Rollbackable]]:
    """Swap mlx-lm's caches in a list for rewindable ones, and restore them on exit."""
    if not isinstance(caches, list) or not caches:
        raise OptionError("speculation needs the list of a model's caches, one per layer")
    # Imports mlx-lm, which a caller with its caches has loaded already.
    from speculate.backends.adopt import adopt

    loan = CacheLoan(caches, adopt)
    try:
        try:
            loan.take()
            yield loan.caches
        finally:
            loan.give_back()
    finally:
        loan.give_back()
    if loan.lost:
        raise RewindError(
            f"the last {loan.lost} tokens that were kept are in no cache: a layer can only "
            "roll back whole blocks, and mlx-lm's caches cannot replay tokens. Feed these tokens "
            "again, or make the list with model.make_cache()."
        )
