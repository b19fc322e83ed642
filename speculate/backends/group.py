"""The caches of one list: they are rewound together, or not at all."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import mlx.core as mx

from speculate.backends.ledger import Ledger
from speculate.backends.member import CanTrim, Grouped, WritesInBlocks
from speculate.errors import RewindError
from speculate.protocols import Rollbackable

RECORD_WINDOW: Final = 64
"""Tokens that a speculating cache can always take back, if it was fed that many."""


class CacheGroup:
    """Everything that the caches of one list share.

    Knows where the last kept point is, what was fed since, and which tokens are owed.
    """

    def __init__(self, members: Sequence[Rollbackable]) -> None:
        # Weak, since every member holds the group: a cycle would keep large buffers
        # alive until the garbage collector happens to run.
        self._members = [weakref.ref(member) for member in members]
        # In a window they are held: the garbage collector clears weak references before it
        # closes a generator, which then has to bring them to its text.
        self._held: list[Rollbackable] = []
        self._writers = _writers(members)
        self._base: list[int] | None = None
        self._go_back: list[Callable[[], None]] = []
        self._ledger = Ledger()
        self._open = False

    def __deepcopy__(self, memo: dict[int, object]) -> CacheGroup:
        """A copied list is a group of its own, and in no window."""
        memo[id(self)] = twin = CacheGroup([])
        members = [copy.deepcopy(member, memo) for member in self.members()]
        twin._members = [weakref.ref(member) for member in members]
        twin._writers = _writers(members)
        twin._ledger.owe(self.owed())
        return twin

    def members(self) -> list[Rollbackable]:
        """The caches, first layer to last."""
        return [member for member in self._found() if member is not None]

    def _found(self) -> Sequence[Rollbackable | None]:
        return self._held or [member() for member in self._members]

    def check_trim(self, asking: CanTrim, n: int, /) -> None:
        """Refuse a trim that a member in the same state as `asking` could not follow.

        mlx-lm trims a list layer by layer. Members that were trimmed before in this pass
        are shorter already, so those of equal length are the ones still to come.

        Raises:
            RewindError: Names the first layer that cannot take `n` tokens back.
        """
        length = asking.length()
        if self._base is not None and n > 0:
            pairs = zip(self.members(), self._base, strict=True)
            fed = next((length - base for member, base in pairs if member is asking), n)
            if n > fed:
                raise RewindError(f"cannot take back {n} tokens: {fed} since the kept point")
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
        if self._held:
            self._held[index] = member
        self._writers = _writers(self.members())
        if isinstance(member, Grouped):
            member.join(self)
        if self._base is not None:
            self.mark()

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
        found = self._found()
        there = [member for place in self._writers if (member := found[place]) is not None]
        writers = cast("list[WritesInBlocks]", there)
        before = self._lengths()
        self._cut()
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
            self._ledger.pay()
        else:
            self._ledger.add(fed)

    # One window: called by `speculation` and by the decoder.

    def start(self) -> None:
        """Mark the present as the kept point, and record from here on.

        Raises:
            RewindError: Somebody records already: one window at a time.
        """
        if self._base is not None:
            raise RewindError("these caches are in a window already: leave it, or use that one")
        self.mark()

    def mark(self) -> None:
        """Make the present the kept point of the window: nothing is taken back."""
        members = self.members()
        for member in members:
            member.start_speculation()
        self._held = members
        self._base = self._lengths()
        self._go_back = [member.checkpoint() for member in members]
        self._ledger.forget()

    def stop(self) -> None:
        """Stop recording. Call `restore` first, unless everything fed is to stay."""
        for member in self.members():
            member.stop_speculation()
        self._held = []
        self._base = None
        self._go_back = []
        self._ledger.forget()

    def fed(self) -> int:
        """Tokens fed since the kept point, without those fed again because they were owed."""
        self._cut()
        return self._ledger.fed()

    def _cut(self) -> None:
        """Forget tokens that `trim` took back behind the window's back."""
        if self._base is not None and not self._ledger.empty:
            self._ledger.cut(max(self._fed_by_member(), default=0))

    def owed(self) -> mx.array | None:
        """Tokens `(1, m)` that the next forward feeds in front of its own."""
        return self._ledger.owed()

    def owes_much(self) -> bool:
        """Whether the owed tokens are better fed as a block of their own."""
        return self._ledger.owes_much()

    def take_owed(self) -> mx.array | None:
        """The owed tokens, which the caller now feeds itself. They are owed no more."""
        owed = self.owed()
        self._ledger.pay()
        return owed

    @contextmanager
    def paying(self) -> Iterator[mx.array]:
        """Feed the owed tokens `(1, m)` alone: they are text, and behind a kept point then."""
        owed = self.take_owed()
        if owed is None:
            raise RewindError("nothing is owed")
        try:
            with self.block(owed) as fed:
                yield fed
        except BaseException:
            self._ledger.owe(owed)
            raise
        if self._base is not None:
            self.mark()

    def plan_keep(self, m: int, /) -> list[int] | None:
        """How many tokens each member takes back so that `m` stay, or as few more as it must.

        Returns:
            An empty list where all that was fed stays, and `None` where all members have to
            return to the kept point, which they always can.
        """
        if m >= self.fed():
            return []
        keep = self._ledger.paid() + m
        for point in range(keep, 0, -1):
            surplus = [max(0, n - point) for n in self._fed_by_member()]
            pairs = zip(self.members(), surplus, strict=True)
            if all(member.can_trim(n) for member, n in pairs):
                return surplus
        return None

    def apply_keep(self, m: int, surplus: list[int] | None, /) -> None:
        """Carry out what `plan_keep(m)` found, and make the result the kept point.

        Raises:
            RewindError: No window is open. Nothing was changed.
        """
        if self._base is None:
            raise RewindError("no speculation is running on these caches")
        if surplus != []:
            kept = min(m, self.fed())
            if surplus is None:
                self._return()
            else:
                self._take_back(surplus)
            self._ledger.settle(kept, landed=max(self._fed_by_member(), default=0))
        elif not self._ledger.empty:
            self._ledger.pay()
        self.mark()

    def restore(self) -> None:
        """Return to the kept point, if there is one."""
        if self._base is not None:
            self._return()
            self.mark()

    def _return(self) -> None:
        for go_back in self._go_back:
            go_back()

    def _take_back(self, surplus: Sequence[int]) -> None:
        for member, n in zip(self.members(), surplus, strict=True):
            if n > 0:
                member.trim(n)

    def _fed_by_member(self) -> list[int]:
        if self._base is None:
            raise RewindError("no speculation is running on these caches")
        return [length - b for length, b in zip(self._lengths(), self._base, strict=True)]

    def _lengths(self) -> list[int]:
        return [member.length() for member in self.members()]


def _writers(members: Sequence[Rollbackable]) -> list[int]:
    """Their places. Found once: asking an object for a protocol is slow."""
    return [place for place, member in enumerate(members) if isinstance(member, WritesInBlocks)]
