"""One rewind over all caches that a loop feeds: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

from speculate.backends.group import CacheGroup, group_of
from speculate.decoding.loan import Borrowed
from speculate.errors import OptionError, RewindError
from speculate.protocols import Rollbackable
from speculate.validation import validated_integer


@final
class Window:
    """Tokens fed since the last kept point, in every cache of one or more groups.

    Made by `speculation`. Several models' caches may share a window: a member that was
    fed fewer tokens than are kept keeps what it has.
    """

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = list(groups)
        self._over = False

    def fed(self) -> int:
        """Most tokens that a member was fed since the kept point.

        Raises:
            RewindError: The block was left.
        """
        self._refuse_if_over()
        return max((group.fed() for group in self._groups), default=0)

    def keep(self, m: int, /) -> None:
        """Keep the first `m` tokens fed since the kept point, and take the rest back.

        What is kept becomes the new kept point, and the window goes on.

        Raises:
            RewindError: `m` is negative or more than was fed, a layer cannot go back so far,
                or the block was left. Every layer is checked first, and nothing was changed.
        """
        m = validated_integer("m", m)
        if not 0 <= m <= self.fed():
            raise RewindError(
                f"cannot keep {m} tokens: {self.fed()} were fed since the kept point. Feed with "
                "model.forward of a model from speculate.load or adapt, inside the block."
            )
        plans = [group.plan_keep(m) for group in self._groups]
        for group, plan in zip(self._groups, plans, strict=True):
            group.apply_keep(m, plan)

    def leave(self) -> None:
        """Refuse every call from now on: the caches may be in another window."""
        self._over = True

    def _refuse_if_over(self) -> None:
        if self._over:
            raise RewindError(
                "this window was left: what it had not kept was taken back when its block ended. "
                "Use the window of the block that is open, or open another one with speculation()"
            )


@contextmanager
def speculation(*caches: Sequence[object]) -> Iterator[Window]:
    """Feed tokens that may be taken back again.

    Leaving the block, also by an exception, takes back whatever was fed after the last
    `keep`. Caches of mlx-lm's own types are replaced in their list for the time of the
    block, and refilled at its end.

    Args:
        caches: Each a model's or a head's whole list.

    Raises:
        CannotRewindError: A layer's cache is of a kind that nothing here can rewind.
        OptionError: No list was given, or something that is none, or one cache twice.
    """
    if not caches:
        raise OptionError("speculation needs at least one model's list of caches")
    _refuse_what_is_no_list(caches)
    # Costs an import of mlx-lm, which whoever has caches has paid for already.
    from speculate.backends.adopt import refuse_shared

    refuse_shared(*caches)
    with ExitStack() as stack:
        window = Window([stack.enter_context(_recorded(cache)) for cache in caches])
        stack.callback(window.leave)
        yield window


def _refuse_what_is_no_list(caches: Sequence[object]) -> None:
    for given in caches:
        if not isinstance(given, Sequence):
            kind = type(given).__name__
            raise OptionError(
                f"speculation needs a list of caches, from model.make_cache(); got {kind}"
            )


@contextmanager
def _recorded(caches: Sequence[object]) -> Iterator[CacheGroup]:
    """One list that records, and is back at its last kept point in the end."""
    group = group_of(caches)
    if group is None:
        with _adopted(caches) as adopted, _recorded(adopted) as group:
            yield group
        return
    group.start()
    try:
        try:
            yield group
        finally:
            _leave(group)
    finally:
        # Does what is left to do, if an interrupt came in the middle of the first.
        _leave(group)


def _leave(group: CacheGroup) -> None:
    try:
        group.rewind()
    finally:
        group.stop()


@contextmanager
def _adopted(caches: Sequence[object]) -> Iterator[list[Rollbackable]]:
    """A list in which mlx-lm's caches give way to rewindable ones for a while."""
    if not isinstance(caches, list) or not caches:
        raise OptionError("speculation needs the list of a model's caches, one a layer")
    # Costs an import of mlx-lm, which whoever has such caches has paid for already.
    from speculate.backends.adopt import adopt

    borrowed = Borrowed(caches, adopt)
    try:
        try:
            borrowed.take()
            yield borrowed.caches
        finally:
            borrowed.give_back()
    finally:
        borrowed.give_back()
    if borrowed.lost:
        raise RewindError(
            f"the last {borrowed.lost} tokens that were kept are in no cache: some layer can only "
            "take whole blocks back, and mlx-lm's caches cannot be owed tokens. Feed them again, "
            "or make the list with model.make_cache()."
        )
