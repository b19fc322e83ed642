"""Which tokens were fed since the last kept point, and which are owed."""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar, cast, final

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.backends.fed_tokens import Ledger
from speculate.errors import RewindError
from speculate.protocols import Rollbackable


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


RECORD_WINDOW: Final = 64
"""Tokens that a speculating cache can always take back, if it was fed that many."""


@attrs.frozen(eq=False)
class KeptPoint:
    """A point that the caches of a window return to.

    Attributes:
        members: The caches. In a window they are held: the garbage collector clears weak
            references before it closes a generator, which then has to bring them to its text.
        lengths: Of each.
        go_back: Returns each to this point.
    """

    members: Sequence[Rollbackable]
    lengths: Sequence[int]
    go_back: Sequence[Callable[[], None]]


class CacheGroup:
    """Everything that the caches of one list share.

    Knows where the last kept point is, what was fed since, and which tokens are owed.
    """

    def __init__(self, members: Sequence[Rollbackable]) -> None:
        # Weak, since every member holds the group: a cycle would keep large buffers
        # alive until the garbage collector happens to run.
        self._members = [weakref.ref(member) for member in members]
        self._writers = _writers(members)
        self._kept: KeptPoint | None = None
        self._ledger = Ledger()
        self._open = False

    def __deepcopy__(self, memo: dict[int, object]) -> CacheGroup:
        """A copied list is a group of its own, and in no window."""
        memo[id(self)] = twin = CacheGroup([])
        members = [copy.deepcopy(member, memo) for member in self.members()]
        twin._members = [weakref.ref(member) for member in members]
        twin._writers = _writers(members)
        twin._ledger = Ledger(self.owed())
        return twin

    def members(self) -> list[Rollbackable]:
        """The caches, first layer to last."""
        return [member for member in self._found() if member is not None]

    def _found(self) -> Sequence[Rollbackable | None]:
        return self._kept.members if self._kept else [member() for member in self._members]

    def check_trim(self, asking: CanTrim, n: int, /) -> None:
        """Refuse a trim that a member in the same state as `asking` could not follow.

        mlx-lm trims a list layer by layer. Members that were trimmed before in this pass
        are shorter already, so those of equal length are the ones still to come.

        Raises:
            RewindError: Names the first layer that cannot take `n` tokens back.
        """
        length = asking.length()
        if self._kept is not None and n > 0:
            pairs = zip(self.members(), self._kept.lengths, strict=True)
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
        if isinstance(member, Grouped):
            member.join(self)
        members = self.members()
        members[index] = member
        references, writers = [weakref.ref(one) for one in members], _writers(members)
        self._members, self._writers = references, writers
        if self._kept is not None:
            self._mark(members, Ledger(self.owed()))

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
        try:
            try:
                self._open = True
                yield fed
            except BaseException:
                for writer in writers:
                    writer.abandon_block()
                surplus = zip(self.members(), before, strict=True)
                self._take_back([member.length() - length for member, length in surplus])
                raise
            finally:
                self._open = False
        finally:
            # Once more, since an interrupt may come in front of the first.
            self._open = False
        for writer in writers:
            writer.close_block(fed.shape[1])
        if self._kept is None:
            self._ledger.pay()
        else:
            self._ledger.add(fed)

    # One window: called by `speculation` and by the decoder.

    def start(self) -> None:
        """Mark the present as the kept point, and record from here on.

        Raises:
            RewindError: Somebody records already: one window at a time.
        """
        self.refuse_a_second_window()
        self.mark()

    def refuse_a_second_window(self) -> None:
        """Raise where somebody records already.

        Raises:
            RewindError: One window at a time.
        """
        if self._kept is not None:
            raise RewindError("these caches are in a window already: leave it, or use that one")

    def mark(self) -> None:
        """Make the present the kept point of the window: nothing is taken back."""
        self._mark(self.members(), Ledger(self.owed()))

    def _mark(self, members: Sequence[Rollbackable], ledger: Ledger) -> None:
        """Make the present the kept point, or leave the one before: nothing in between."""
        for member in members:
            member.start_speculation()
        lengths = [member.length() for member in members]
        kept = KeptPoint(members, lengths, [member.checkpoint() for member in members])
        self._kept, self._ledger = kept, ledger

    def stop(self) -> None:
        """Stop recording. Call `restore` first, unless everything fed is to stay."""
        for member in self.members():
            member.stop_speculation()
        self._kept, self._ledger = None, Ledger(self.owed())

    def fed(self) -> int:
        """Tokens fed since the kept point, without those fed again because they were owed."""
        self._cut()
        return self._ledger.fed()

    def _cut(self) -> None:
        """Forget tokens that `trim` took back behind the window's back."""
        if self._kept is not None and not self._ledger.empty:
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
        owed = self.owed()
        if owed is None:
            raise RewindError("nothing is owed")
        with self.block(owed[:, :0]) as fed:
            yield fed
        if self._kept is not None:
            self.apply_keep(0, [])

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
        if self._kept is None:
            raise RewindError("no speculation is running on these caches")
        kept = min(m, self.fed())
        if surplus is None:
            self._return()
        elif surplus:
            self._take_back(surplus)
        landed = max(self._fed_by_member(), default=0)
        self._mark(self.members(), Ledger(self._ledger.owed_after(kept, landed)))

    def restore(self) -> None:
        """Return to the kept point, if there is one."""
        if self._kept is not None:
            self._return()
            self._mark(self.members(), Ledger(self._ledger.owed_at_kept_point()))

    def _return(self) -> None:
        for go_back in self._kept.go_back if self._kept else ():
            go_back()

    def _take_back(self, surplus: Sequence[int]) -> None:
        for member, n in zip(self.members(), surplus, strict=True):
            if n > 0:
                member.trim(n)

    def _fed_by_member(self) -> list[int]:
        if self._kept is None:
            raise RewindError("no speculation is running on these caches")
        pairs = zip(self._lengths(), self._kept.lengths, strict=True)
        return [length - base for length, base in pairs]

    def _lengths(self) -> list[int]:
        return [member.length() for member in self.members()]


def _writers(members: Sequence[Rollbackable]) -> list[int]:
    """Their places. Found once: asking an object for a protocol is slow."""
    return [place for place, member in enumerate(members) if isinstance(member, WritesInBlocks)]


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
