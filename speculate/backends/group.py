"""The caches of one list: they are rewound together, or not at all."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import mlx.core as mx

from speculate.backends.member import CanTrim, Grouped, WritesInBlocks
from speculate.errors import RewindError
from speculate.protocols import Rollbackable

RECORD_WINDOW: Final = 64
"""Tokens that a speculating cache can always take back, if it was fed that many."""


class CacheGroup:
    """Everything that the caches of one list share.

    Knows where the last kept point is, what was fed since, and which tokens are *owed*:
    kept, but to be fed again in front of the next block, because some layer could only
    return to a point before them.
    """

    def __init__(self, members: Sequence[Rollbackable]) -> None:
        # Weak, since every member holds the group: a cycle would keep large buffers
        # alive until the garbage collector happens to run.
        self._members = [weakref.ref(member) for member in members]
        self._writers = _writers(members)
        self._base: list[int] | None = None
        self._log: list[mx.array] = []
        self._owed: mx.array | None = None
        self._open = False

    def members(self) -> list[Rollbackable]:
        """The caches, first layer to last."""
        found = [member() for member in self._members]
        return [member for member in found if member is not None]

    def check_trim(self, asking: CanTrim, n: int, /) -> None:
        """Refuse a trim that a member in the same state as `asking` could not follow.

        mlx-lm trims a list layer by layer. Members that were trimmed before in this pass
        are shorter already, so those of equal length are the ones still to come.

        Raises:
            RewindError: Names the first layer that cannot take `n` tokens back.
        """
        length = asking.length()
        for index, member in enumerate(self.members()):
            if member.length() == length and not member.can_trim(n):
                raise RewindError(
                    f"cannot take back {n} tokens: layer {index} ({type(member).__name__}) "
                    f"can not at length {length}. Start speculation before the tokens are fed, "
                    "and take back no more than were fed since."
                )

    def replace(self, index: int, member: Rollbackable) -> None:
        """Put another cache of the same length in the place of one, as quantising does."""
        self._members[index] = weakref.ref(member)
        self._writers = _writers(self.members())
        if isinstance(member, Grouped):
            member.join(self)

    # One forward: called by a model's adapter.

    @contextmanager
    def block(self, tokens: mx.array, /) -> Iterator[mx.array]:
        """Feed a block, all or nothing. Inside another one of this group it does nothing.

        Args:
            tokens: `(1, T)` ids.

        Yields:
            What to feed: `tokens`, behind the owed ones. If the body raises, what some of
            the layers consumed already is taken back.
        """
        if self._open:
            yield tokens
            return
        writers = [writer for ref in self._writers if (writer := ref()) is not None]
        before = [member.length() for member in self.members()]
        for writer in writers:
            writer.open_block()
        owed = self.owed()
        fed = tokens if owed is None else mx.concatenate([owed, tokens], axis=1)
        self._open = True
        try:
            yield fed
        except BaseException:
            for writer in writers:
                writer.abandon_block()
            surplus = zip(self.members(), before, strict=True)
            self._take_back([member.length() - length for member, length in surplus])
            raise
        finally:
            self._open = False
        for writer in writers:
            writer.close_block(fed.shape[1])
        if self._base is None:
            self._owed = None
        else:
            self._log.append(fed)

    # One window: called by `speculation` and by the decoder.

    def start(self) -> None:
        """Mark the present as the kept point, and record from here on."""
        self._mark()

    def stop(self) -> None:
        """Stop recording. Call `restore` first, unless everything fed is to stay."""
        for member in self.members():
            member.stop_speculation()
        self._base = None
        self._log = []

    def fed(self) -> int:
        """Tokens fed since the kept point, without those fed again because they were owed."""
        return max(0, sum(block.shape[1] for block in self._log) - self._owed_rows())

    def owed(self) -> mx.array | None:
        """Tokens `(1, m)` that the next forward feeds in front of its own."""
        return None if self._log else self._owed

    def take_owed(self) -> mx.array | None:
        """The owed tokens, which the caller now feeds itself. They are owed no more."""
        owed, self._owed = self.owed(), None
        return owed

    def plan_keep(self, m: int, /) -> list[int]:
        """Work out how many tokens each member takes back so that `m` stay.

        Raises:
            RewindError: A member can return neither there nor to any point before it.
                Nothing was changed.
        """
        keep = (self._owed_rows() if self._log else 0) + min(m, self.fed())
        for point in range(keep, -1, -1):
            surplus = [max(0, n - point) for n in self._fed_by_member()]
            pairs = zip(self.members(), surplus, strict=True)
            if all(member.can_trim(n) for member, n in pairs):
                return surplus
        raise RewindError(f"cannot keep {m} of the {self.fed()} tokens fed: {self._culprit()}")

    def apply_keep(self, m: int, surplus: list[int], /) -> None:
        """Carry out what `plan_keep(m)` found, and make the result the kept point."""
        kept = min(m, self.fed())
        self._take_back(surplus)
        if self._log:
            self._settle_owed(self._owed_rows() + kept)
        self._mark()

    def restore(self) -> None:
        """Return to the kept point, if there is one."""
        if self._base is not None:
            self._take_back(self._fed_by_member())
            self._mark()

    def _take_back(self, surplus: Sequence[int]) -> None:
        for member, n in zip(self.members(), surplus, strict=True):
            if n > 0:
                member.trim(n)

    def _settle_owed(self, keep: int) -> None:
        """After a rewind: owe what is kept of the fed tokens and is in no cache any more."""
        landed = max(self._fed_by_member(), default=0)
        text = mx.concatenate(self._log, axis=1)[:, :keep]
        self._owed = text[:, landed:] if landed < keep else None

    def _mark(self) -> None:
        members = self.members()
        for member in members:
            member.start_speculation()
        self._base = [member.length() for member in members]
        self._log = []

    def _fed_by_member(self) -> list[int]:
        if self._base is None:
            raise RewindError("no speculation is running on these caches")
        return [c.length() - b for c, b in zip(self.members(), self._base, strict=True)]

    def _owed_rows(self) -> int:
        return 0 if self._owed is None else self._owed.shape[1]

    def _culprit(self) -> str:
        fed = zip(self.members(), self._fed_by_member(), strict=True)
        stuck = [
            f"layer {i} ({type(c).__name__})" for i, (c, n) in enumerate(fed) if not c.can_trim(n)
        ]
        return f"{', '.join(stuck) or 'no layer'} cannot take its part back"


def _writers(members: Sequence[Rollbackable]) -> list[weakref.ref[WritesInBlocks]]:
    """Found once: asking an object for a protocol is slow."""
    return [weakref.ref(member) for member in members if isinstance(member, WritesInBlocks)]


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
        if isinstance(cache, Grouped):
            return cache.group()
    return None
