"""Mistakes that people have made in taking tokens back, to be planted one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import RotatingKVCache

from speculate.backends import adoption
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import CacheGroup
from speculate.backends.kv import RewindableKVCache
from speculate.backends.member import GroupMember
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.protocols import Entries
from tests.backends.driving import model

Restore = Callable[[int], Entries]
Patch = pytest.MonkeyPatch


def _recorded_as(
    patch: Patch, change: Callable[[int, Restore, Entries], tuple[Restore, Entries]]
) -> None:
    """Change what layers record before it reaches the cache."""
    record = RewindableArraysCache.record_rollback

    def changed(self: Any, fed: int, restore: Restore | None, snapshot: Entries, /) -> None:
        if restore is None:
            record(self, fed, restore, snapshot)
        else:
            record(self, fed, *change(fed, restore, snapshot))

    patch.setattr(RewindableArraysCache, "record_rollback", changed)


def conv_window_of_the_next_token(patch: Patch) -> None:
    _recorded_as(patch, lambda _, restore, old: (lambda m: (restore(m + 1)[0], restore(m)[1]), old))


def state_of_the_next_token(patch: Patch) -> None:
    _recorded_as(patch, lambda _, restore, old: (lambda m: (restore(m)[0], restore(m + 1)[1]), old))


def state_of_the_token_before(patch: Patch) -> None:
    def change(_: int, restore: Restore, old: Entries) -> tuple[Restore, Entries]:
        return lambda m: (restore(m)[0], restore(m - 1)[1] if m > 1 else old[1]), old

    _recorded_as(patch, change)


def snapshot_is_the_last_state(patch: Patch) -> None:
    """Going back to 0 takes the state at index -1."""
    _recorded_as(patch, lambda fed, restore, old: (restore, (old[0], restore(fed)[1])))


def second_rewind_of_a_block_is_one_off(patch: Patch) -> None:
    def change(fed: int, restore: Restore, old: Entries) -> tuple[Restore, Entries]:
        calls: list[int] = []

        def shifted(m: int) -> Entries:
            calls.append(m)
            return restore(min(m + len(calls) - 1, fed))

        return shifted, old

    _recorded_as(patch, change)


def rejected_tokens_stay_in_the_state(patch: Patch) -> None:
    _recorded_as(patch, lambda fed, restore, _: (lambda _m: restore(fed), restore(fed)))


class RingWithSnapshots(GroupMember, RotatingKVCache):
    """Keeps its arrays by reference, and single steps then write into them."""

    def __init__(self, max_size: int, keep: int = 0) -> None:
        RotatingKVCache.__init__(self, max_size=max_size, keep=keep)
        self.snapshot: tuple[Any, ...] = (None, None, 0, 0)

    @classmethod
    def adopt(cls, stock: RotatingKVCache) -> Self:
        return cls(stock.max_size, stock.keep)

    def length(self) -> int:
        return int(self.offset)

    def can_trim(self, n: int, /) -> bool:
        return n == 0 or self.offset - n == self.snapshot[2]

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int, /) -> int:
        if n:
            self.keys, self.values, self.offset, self._idx = self.snapshot
        return n

    def start_speculation(self) -> None:
        self.snapshot = (self.keys, self.values, self.offset, self._idx)

    def stop_speculation(self) -> None:
        """Nothing to do."""

    def checkpoint(self) -> Callable[[], None]:
        return lambda: None

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]

    def hand_back(self) -> object:
        return self


def snapshot_by_reference(patch: Patch) -> None:
    patch.setattr(adoption, "RewindableRotatingKVCache", RingWithSnapshots)


def ring_taken_over_out_of_order(patch: Patch) -> None:
    def as_it_lies(self: Any, rows: mx.array) -> mx.array:
        return rows[..., : max(self._idx, min(self.offset, self.max_size)), :]

    patch.setattr(RotatingKVCache, "_temporal_order", as_it_lies)


def order_lost_when_the_buffer_fills_up(patch: Patch) -> None:
    update = RewindableRotatingKVCache.update_and_fetch

    def changed(self: Any, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        before = self.rows()
        seen = update(self, keys, values)
        if self.rows() < before + keys.shape[2]:
            self.keys = mx.roll(self.keys, 1, 2)
        return seen

    patch.setattr(RewindableRotatingKVCache, "update_and_fetch", changed)


def positions_of_a_window_run_on(patch: Patch) -> None:
    trim = RewindableRotatingKVCache.trim

    def changed(self: Any, n: int, /) -> int:
        taken = trim(self, n)
        self.offset += n
        return taken

    patch.setattr(RewindableRotatingKVCache, "trim", changed)


def length_of_a_state_runs_on(patch: Patch) -> None:
    start, lengths = RewindableArraysCache.trim, RewindableArraysCache.length
    behind: dict[int, int] = {}

    def changed(self: Any, n: int, /) -> int:
        behind[id(self)] = behind.get(id(self), 0) + n
        return start(self, n)

    patch.setattr(RewindableArraysCache, "trim", changed)
    patch.setattr(
        RewindableArraysCache, "length", lambda self: lengths(self) + behind.get(id(self), 0)
    )


def rows_are_trimmed_as_far_as_they_go(patch: Patch) -> None:
    trim, can_trim = RewindableKVCache.trim, RewindableKVCache.can_trim

    def clamped(self: Any, n: int, /) -> int:
        return trim(self, min(n, self.length()))

    patch.setattr(RewindableKVCache, "trim", clamped)
    patch.setattr(RewindableKVCache, "can_trim", lambda self, n: can_trim(self, n) or n > 0)


def layers_are_checked_one_at_a_time(patch: Patch) -> None:
    patch.setattr(CacheGroup, "check_trim", lambda self, asking, n: None)


def a_rewind_of_zero_does_nothing(patch: Patch) -> None:
    plan = CacheGroup.plan_keep
    patch.setattr(CacheGroup, "plan_keep", lambda self, m: plan(self, m or self.fed()))


def one_token_too_many_is_kept(patch: Patch) -> None:
    plan = CacheGroup.plan_keep
    patch.setattr(CacheGroup, "plan_keep", lambda self, m: plan(self, min(m + 1, self.fed())))


def owed_tokens_are_forgotten(patch: Patch) -> None:
    patch.setattr(CacheGroup, "owed", lambda self: None)


def a_failed_block_stays_in_the_state(patch: Patch) -> None:
    patch.setattr(RewindableArraysCache, "abandon_block", lambda self: None)


def replay_over_scratch_rows(patch: Patch) -> None:
    """Recurrent layers are replayed by a forward whose attention starts from nothing."""
    apply_keep, start = CacheGroup.apply_keep, CacheGroup.start
    before: list[list[mx.array | None]] = []

    def entries(group: CacheGroup) -> list[list[mx.array | None]]:
        states = [m for m in group.members() if isinstance(m, RewindableArraysCache)]
        return [state.entries() for state in states]

    def started(self: CacheGroup) -> None:
        start(self)
        before[:] = entries(self)

    def kept(self: CacheGroup, m: int, surplus: list[int] | None, /) -> None:
        fed: Sequence[mx.array] = self._ledger._log
        text = mx.concatenate([*fed], axis=1)[:, :m] if fed else None
        apply_keep(self, m, surplus)
        if text is not None and m and any(surplus or ()):
            scratch = model("qwen3_5").make_cache()
            states = [s for s in scratch if isinstance(s, RewindableArraysCache)]
            for state, old in zip(states, before, strict=True):
                state.cache = [*old]
            model("qwen3_5").forward(text, scratch)
            ours = [s for s in self.members() if isinstance(s, RewindableArraysCache)]
            for state, replayed in zip(ours, states, strict=True):
                state.cache = replayed.entries()
        before[:] = entries(self)

    patch.setattr(CacheGroup, "start", started)
    patch.setattr(CacheGroup, "apply_keep", kept)


def sinks_slide_out_of_a_blocks_view(patch: Patch) -> None:
    mask = RewindableRotatingKVCache.make_mask

    def stocks(self: Any, N: int, *args: Any, **kwargs: Any) -> Any:
        if N == 1:
            return mask(self, N, *args, **kwargs)
        prior = min(self.rows(), self.max_size - 1)
        return create_causal_mask(N, prior, window_size=self.max_size)

    patch.setattr(RewindableRotatingKVCache, "make_mask", stocks)


def a_view_of_the_buffer_is_handed_back(patch: Patch) -> None:
    def view(self: Any) -> RotatingKVCache:
        stock = self._source
        rows = min(self.rows(), self.max_size)
        stock.keys = self.keys[..., self.rows() - rows : self.rows(), :]
        stock.values = self.values[..., self.rows() - rows : self.rows(), :]
        stock.offset, stock._idx = self.offset, rows
        return stock  # type: ignore[no-any-return]

    patch.setattr(RewindableRotatingKVCache, "hand_back", view)
