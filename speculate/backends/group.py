"""The caches of one list as a group: forwards and rewinds apply to all of them or to none."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar, cast, final

import attrs
import mlx.core as mx

from speculate.errors import RewindError
from speculate.protocols import Rollbackable

RECORD_WINDOW: Final = 64
"""Tokens that a recording cache can always roll back, if it was fed that many."""

MAX_MERGED_REPLAY: Final = 8
"""A replay of at least this many tokens is a forward of its own, not the start of a block."""

CacheT = TypeVar("CacheT", bound=Rollbackable)


class Grouped:
    """The part of `speculate.backends.base.BaseCache` that its group calls."""

    _group: CacheGroup | None = None

    def group(self) -> CacheGroup | None:
        """Return the caches that are rewound together with this one."""
        return self._group

    def join(self, group: CacheGroup, /) -> None:
        """Become a member of `group`."""
        self._group = group

    def trim_rows(self, n: int, /) -> None:
        """Drop the last `n` tokens, `n >= 1`. Every member of the group was checked."""
        raise NotImplementedError

    def is_notified(self) -> bool:
        """Whether the group calls `begin_block`, `commit_block` and `abort_block`."""
        return True

    def begin_block(self) -> None:
        """Begin a forward."""

    def commit_block(self, num_tokens: int, /) -> None:
        """End a forward that fed `num_tokens` tokens."""

    def abort_block(self) -> None:
        """Restore the content at `begin_block`, after a failed forward. No-op without one."""


@attrs.frozen(eq=False)
class GroupCheckpoint:
    """A point that all caches of a window can be restored to."""

    # Strong references: the garbage collector clears weak ones before it closes a generator,
    # which then still has to rewind its caches.
    members: Sequence[Rollbackable]
    lengths: Sequence[int]
    checkpoints: Sequence[Callable[[], None]]


@final
@attrs.define(eq=False)
class FedTokens:
    """Token ids fed to one group of caches since its checkpoint.

    Tokens to replay are part of the sequence but in no cache: some layer could only be rewound to
    a point before them. They are fed again at the start of the next block.
    """

    replay: mx.array | None = None  # `(1, m)` ids to replay at the checkpoint
    blocks: list[mx.array] = attrs.Factory(list)  # `(1, T)` each; the first begins with `replay`

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens: the rest was trimmed from the caches."""
        if self.blocks and sum(block.shape[1] for block in self.blocks) > length:
            whole = mx.concatenate(self.blocks, axis=1)
            self.blocks = [whole[:, :length]] if length else []

    def replay_length(self) -> int:
        """Number of tokens to replay at the checkpoint, fed since then or not."""
        return 0 if self.replay is None else self.replay.shape[1]

    def fed(self) -> int:
        """Number of new tokens fed, without the replayed ones."""
        return max(0, sum(block.shape[1] for block in self.blocks) - self.replay_length())

    def to_replay(self) -> mx.array | None:
        """Ids `(1, m)` to feed at the start of the next block."""
        return None if self.blocks else self.replay

    def after_rewind(self, kept: int, cached: int) -> mx.array | None:
        """Ids `(1, m)` to replay after a rewind to `kept` new tokens: those that are in no cache.

        The caches still hold `cached` of the tokens fed since the checkpoint, replayed or new.
        """
        if not self.blocks:
            return self.replay
        keep = self.replay_length() + kept
        return mx.concatenate(self.blocks, axis=1)[:, cached:keep] if cached < keep else None


class CacheGroup:
    """The caches of one list, which are fed and rewound together."""

    def __init__(self, members: Sequence[Rollbackable]) -> None:
        # Weak, since every member holds the group: a cycle would keep large buffers
        # alive until the garbage collector happens to run.
        self._members = [weakref.ref(member) for member in members]
        self._writers = _block_writers(members)
        self._checkpoint: GroupCheckpoint | None = None
        self._fed_tokens = FedTokens()
        self._open = False

    def __deepcopy__(self, memo: dict[int, object]) -> CacheGroup:
        """Copy the list: the copy is a group of its own, in no window."""
        memo[id(self)] = twin = CacheGroup([])
        members = [copy.deepcopy(member, memo) for member in self.members()]
        twin._members = [weakref.ref(member) for member in members]
        twin._writers = _block_writers(members)
        twin._fed_tokens = FedTokens(self.to_replay())
        return twin

    def __repr__(self) -> str:
        window = "no window" if self._checkpoint is None else f"{self._fed_tokens.fed()} tokens fed"
        return f"<CacheGroup: {len(self._members)} caches, {window}>"

    def members(self) -> list[Rollbackable]:
        """Return the caches, first layer to last."""
        return [member for member in self._found() if member is not None]

    def _found(self) -> Sequence[Rollbackable | None]:
        point = self._checkpoint
        return point.members if point else [member() for member in self._members]

    def check_trim(self, asking: Rollbackable, n: int, /) -> None:
        """Refuse a trim that a member in the same state as `asking` could not follow.

        mlx-lm trims a list layer by layer. Members trimmed earlier in this pass are shorter
        already, so those of equal length are the ones still to come.

        Raises:
            RewindError: Names the first layer that cannot trim `n` tokens.
        """
        length = asking.length()
        if self._checkpoint is not None and n > 0:
            pairs = zip(self.members(), self._checkpoint.lengths, strict=True)
            fed = next((length - base for member, base in pairs if member is asking), n)
            if n > fed:
                raise RewindError(f"cannot trim {n} tokens: {fed} were fed since the checkpoint")
        for index, member in enumerate(self.members()):
            if member.length() == length and not member.can_trim(n):
                raise RewindError(
                    f"cannot trim {n} tokens: layer {index} ({type(member).__name__}) "
                    f"cannot at length {length}. Start speculation before the tokens are fed, "
                    "and trim no more than were fed since."
                )

    def replace(self, index: int, member: Rollbackable) -> None:
        """Replace one member by another cache of the same length, as quantising does."""
        if isinstance(member, Grouped):
            member.join(self)
        members = self.members()
        members[index] = member
        references, writers = [weakref.ref(one) for one in members], _block_writers(members)
        self._members, self._writers = references, writers
        if self._checkpoint is not None:
            self._set_checkpoint(members, FedTokens(self.to_replay()))

    # One forward: called by a model's adapter.

    @contextmanager
    def block(self, tokens: mx.array, /) -> Iterator[mx.array]:
        """Feed a block to all members or to none. Nested in another block it does nothing.

        Yields the ids to feed: those to replay, then `tokens`, `(1, T)`. If the body raises, what
        some layers have consumed is rolled back.
        """
        if self._open:
            yield tokens
            return
        found = self._found()
        there = [member for index in self._writers if (member := found[index]) is not None]
        writers = cast("list[Grouped]", there)
        before = self._lengths()
        self._drop_trimmed()
        for writer in writers:
            writer.begin_block()
        waiting = self.to_replay()
        fed = tokens if waiting is None else mx.concatenate([waiting, tokens], axis=1)
        try:
            try:
                self._open = True
                yield fed
            except BaseException:
                for writer in writers:
                    writer.abort_block()
                for member, length in zip(self.members(), before, strict=True):
                    if member.length() > length:
                        member.trim(member.length() - length)
                raise
            finally:
                self._open = False
        finally:
            # Repeated, because an interrupt may arrive before the first one.
            self._open = False
        for writer in writers:
            writer.commit_block(fed.shape[1])
        if self._checkpoint is None:
            self._fed_tokens.replay = None
        else:
            self._fed_tokens.blocks.append(fed)

    # One window: called by `speculation` and by the decoder.

    def start(self) -> None:
        """Open a window and start recording. Raises `RewindError` if one is open already."""
        self.require_no_window()
        self.checkpoint()

    def require_no_window(self) -> None:
        """Raise `RewindError` if a window is open on these caches already."""
        if self._checkpoint is not None:
            raise RewindError("these caches are in a window already: leave it, or use that one")

    def checkpoint(self) -> None:
        """Make the present content the checkpoint of the window. Nothing is rolled back."""
        self._set_checkpoint(self.members(), FedTokens(self.to_replay()))

    def _set_checkpoint(self, members: Sequence[Rollbackable], fed_tokens: FedTokens) -> None:
        """Set the checkpoint, or leave the previous one if a member raises."""
        for member in members:
            member.start_speculation()
        lengths = [member.length() for member in members]
        point = GroupCheckpoint(members, lengths, [member.checkpoint() for member in members])
        self._checkpoint, self._fed_tokens = point, fed_tokens

    def stop(self) -> None:
        """Close the window. Call `rewind` first, unless everything fed is kept."""
        for member in self.members():
            member.stop_speculation()
        self._checkpoint, self._fed_tokens = None, FedTokens(self.to_replay())

    def fed(self) -> int:
        """Return the number of tokens fed since the checkpoint, without replayed ones."""
        self._drop_trimmed()
        return self._fed_tokens.fed()

    def _drop_trimmed(self) -> None:
        """Forget tokens that a caller trimmed from the caches directly."""
        if self._checkpoint is not None and self._fed_tokens.blocks:
            self._fed_tokens.truncate(max(self._fed_by_member(), default=0))

    def to_replay(self) -> mx.array | None:
        """Return the ids `(1, m)` that the next forward feeds before its own, if any."""
        return self._fed_tokens.to_replay()

    def require_replayed(self) -> None:
        """Raise `RewindError` while tokens of the sequence are in none of the caches."""
        waiting = self.to_replay()
        if waiting is not None:
            raise RewindError(
                f"the last {waiting.shape[1]} tokens that were kept are in no cache yet, because "
                "some layer can only roll back whole blocks: the next model.forward on these "
                "caches replays them. Call it before release."
            )

    def replay_is_long(self) -> bool:
        """Return whether the tokens to replay are better fed as a block of their own."""
        return not self._fed_tokens.blocks and self._fed_tokens.replay_length() >= MAX_MERGED_REPLAY

    def take_replay(self) -> mx.array | None:
        """Return the ids to replay and clear them: from now on the caller has to feed them."""
        waiting, self._fed_tokens.replay = self.to_replay(), None
        return waiting

    @contextmanager
    def replaying(self) -> Iterator[mx.array]:
        """Feed the ids to replay, `(1, m)`, as a block of their own.

        In a window the checkpoint then moves after them: they are part of the sequence.
        """
        waiting = self.to_replay()
        if waiting is None:
            raise RewindError("there is nothing to replay")
        with self.block(waiting[:, :0]) as fed:
            yield fed
        if self._checkpoint is not None:
            self.keep(0)

    def keep(self, m: int, /) -> None:
        """Keep the first `m` tokens fed since the checkpoint, and roll the rest back.

        The result becomes the checkpoint. A group that was fed fewer than `m` tokens keeps all
        of them. Where no trim leaves exactly `m`, the caches keep as many of them as they can,
        and the rest is replayed.

        Raises:
            RewindError: No window is open. Nothing was changed.
        """
        by_member = self._fed_by_member()
        self._fed_tokens.truncate(max(by_member, default=0))
        fed = self._fed_tokens.fed()
        if m < fed:
            surplus = self._surplus(self._fed_tokens.replay_length() + m, by_member)
            if surplus is None:
                self._restore()
            else:
                self._trim(surplus)
            by_member = self._fed_by_member()
        replay = self._fed_tokens.after_rewind(min(m, fed), max(by_member, default=0))
        self._set_checkpoint(self.members(), FedTokens(replay))

    def _surplus(self, keep: int, fed: Sequence[int]) -> list[int] | None:
        """Return how many tokens each member trims to keep at most `keep` of those it was `fed`.

        `None` if all must be restored to the checkpoint, which is always possible.
        """
        for point in range(keep, 0, -1):
            surplus = [max(0, n - point) for n in fed]
            pairs = zip(self.members(), surplus, strict=True)
            if all(member.can_trim(n) for member, n in pairs):
                return surplus
        return None

    def rewind(self) -> None:
        """Restore the checkpoint, if there is one."""
        if self._checkpoint is not None:
            self._restore()
            self._set_checkpoint(self.members(), FedTokens(self._fed_tokens.replay))

    def _restore(self) -> None:
        for restore in self._checkpoint.checkpoints if self._checkpoint else ():
            restore()

    def _trim(self, surplus: Sequence[int]) -> None:
        """Trim what `_surplus` found that every member can: a second check costs time."""
        for member, n in zip(self.members(), surplus, strict=True):
            if n > 0 and isinstance(member, Grouped):
                member.trim_rows(n)
            elif n > 0:
                member.trim(n)

    def _fed_by_member(self) -> list[int]:
        if self._checkpoint is None:
            raise RewindError("no speculation is running on these caches")
        pairs = zip(self._lengths(), self._checkpoint.lengths, strict=True)
        return [length - base for length, base in pairs]

    def _lengths(self) -> list[int]:
        return [member.length() for member in self.members()]


def _block_writers(members: Sequence[Rollbackable]) -> list[int]:
    """Return the indices of members that need block notifications."""
    each = enumerate(members)
    return [index for index, one in each if isinstance(one, Grouped) and one.is_notified()]


def join(caches: Sequence[CacheT]) -> list[CacheT]:
    """Make caches one group: a rewind of one is a rewind of all."""
    group = CacheGroup(caches)
    members: list[object] = list(caches)
    for member in members:
        if isinstance(member, Grouped):
            member.join(group)
    return list(caches)


def group_of(caches: Sequence[object]) -> CacheGroup | None:
    """Return the group that the caches of a list belong to; `None` for caches of mlx-lm."""
    for cache in caches:
        if isinstance(cache, Grouped):
            return cache.group()
    return None


def required_group(caches: Sequence[object], whose: str) -> CacheGroup:
    """Return the group of a list of rewindable caches, or raise `RewindError` if there is none."""
    group = group_of(caches)
    if group is None:
        raise RewindError(
            f"{whose} caches are in no group, so that forwards do not record what was fed: derive "
            "one of their classes from speculate.backends.base.BaseCache"
        )
    return group
