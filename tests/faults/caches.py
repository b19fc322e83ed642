"""Faults in caches, and in the layers and groups that rewind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache

from speculate import Window, speculation
from speculate.backends import adopt as adopt_module
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.base import BaseCache, OffsetCache
from speculate.backends.group import CacheGroup
from speculate.backends.kv import RewindableKVCache
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import RewindError, SpeculateError
from speculate.models.gated_delta import FusedReplay, KeptStates, ResumePoint
from speculate.protocols import Entries, Rollbackable
from speculate.testing import CacheTests
from tests.backends.test_kinds import (
    TestRows,
    TestState,
    TestStateWithoutRecords,
    TestWindow,
    TestWindowWithSinks,
)
from tests.decoding.test_window_interrupts import check, lines
from tests.faults.planting import Patch, Restore, entries_of, fault, recorded_as
from tests.models.test_families import (
    TestGptOss,
    TestLfm2,
    TestLlama,
    TestQwen3Next,
    TestQwen35,
    TestQwen35Folded,
)
from tests.support.cache_contents import cold, feed, ids, model


class PartTests(CacheTests):
    """Tests `part`."""

    part: ClassVar[Any]

    def make_cache(self) -> Rollbackable:
        cache: Rollbackable = type(self).part()
        return cache

    def adopt(self, stock: object, /) -> Rollbackable:
        cache: Rollbackable = type(self).part.adopt(stock)
        return cache


class Rows(OffsetCache, KVCache):
    """A correct cache of rows, in the least code."""

    suite = PartTests
    source: Any = None

    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        stock.keys, stock.values, stock.offset = None, None, 0
        cache.source = stock
        return cache

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]

    def move_out(self) -> object:
        stock: Any = self.source or KVCache()
        stock.keys, stock.values, stock.offset = self.keys, self.values, self.offset
        self.keys, self.values, self.offset = None, None, 0
        return stock


# In a cache of one's own.


@fault(
    "Checkpoints share one position, so that the outer one restores the inner one's.",
    caught_by="test_a_checkpoint_restores_the_state_it_was_made_in",
)
class CheckpointsShareAPosition(Rows):
    place = 0

    def checkpoint(self) -> Callable[[], None]:
        self.place = self.offset

        def restore() -> None:
            self.offset = self.place

        return restore


@fault(
    "mlx-lm saves a cache under the name of a class that it cannot load.",
    caught_by="test_a_cache_is_saved_loadably_or_not_at_all",
)
class SavedFilesCannotBeLoaded(Rows):
    state = KVCache.state


@fault(
    "A cache trims without its group, and becomes shorter than the others.",
    caught_by="test_a_group_is_trimmed_as_a_whole_or_not_at_all",
)
class TrimIgnoresTheGroup(Rows):
    def trim(self, n: int, /) -> int:  # type: ignore[misc]  # type checkers refuse it, too
        if not self.can_trim(n):
            raise RewindError(f"{n} tokens are too many")
        self.offset -= n
        return n


@fault(
    "A cache is handed back while tokens that were kept are in no cache, and loses them.",
    caught_by="test_no_cache_is_handed_back_while_tokens_wait_for_replay",
)
class ReleaseForgetsTheReplay(Rows):
    def release(self) -> object:  # type: ignore[misc]  # type checkers refuse it, too
        return self.move_out()


@fault(
    "`release` fills a new cache, and the caller's list keeps an empty one.",
    caught_by="test_adopting_and_handing_back_move_the_content",
)
class AnotherObjectIsReturned(Rows):
    def move_out(self) -> object:
        self.source = None
        return super().move_out()


@fault(
    "An empty cache is falsy, and mlx-lm's layers run without its mask and its state.",
    caught_by="test_an_empty_cache_answers_every_query",
)
class AnEmptyCacheIsFalsy(Rows):
    def __len__(self) -> int:
        return self.length()


@fault(
    "mlx-lm's cache still holds the rows after it was adopted.",
    caught_by="test_adopting_and_handing_back_move_the_content",
)
class AdoptedRowsStayInBothCaches(Rows):
    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        cache.source = stock
        return cache


@fault(
    "`can_trim` promises what `trim` refuses.",
    caught_by="test_can_trim_predicts_trim",
)
class CanTrimPromisesTooMuch(Rows):
    def can_trim(self, n: int, /) -> bool:
        return n >= 0

    def trim_rows(self, n: int, /) -> None:
        if not 0 <= n <= self.length():
            raise RewindError(f"{n} tokens are too many")
        super().trim_rows(n)


@fault(
    "`is_trimmable` denies what `trim` does, and mlx-lm's loops give up.",
    caught_by="test_can_trim_predicts_trim",
)
class IsTrimmableDeniesTooMuch(Rows):
    def is_trimmable(self) -> bool:
        return False


@fault(
    "`stop_speculation` drops more than the records.",
    caught_by="test_starting_and_stopping_keep_the_content",
)
class StoppingDropsContent(Rows):
    start = 0

    def start_speculation(self) -> None:
        self.start = self.offset

    def stop_speculation(self) -> None:
        self.offset = min(self.offset, self.start)


@fault(
    "A trim removes one token more than it returns.",
    caught_by="test_trimmed_tokens_leave_no_trace",
)
class TrimRemovesOneTokenTooMany(Rows):
    def trim_rows(self, n: int, /) -> None:
        super().trim_rows(n + 1 if n > 1 else n)


@fault(
    "`arrays` omits the values, which stay lazy, and no other thread can evaluate them.",
    caught_by="test_arrays_lists_everything_a_cache_holds",
)
class ValuesStayLazy(Rows):
    def arrays(self) -> list[mx.array]:
        return super().arrays()[:1]


class SnapshotTests(PartTests):
    """Tests a cache that can only trim whole blocks."""

    whole_blocks = True


@fault(
    "A ring keeps a snapshot by reference, and single steps write into the same arrays.",
    caught_by="test_single_steps_are_trimmed_like_blocks",
)
class SnapshotsAreReferences(BaseCache, RotatingKVCache):
    suite = SnapshotTests

    def __init__(self, max_size: int = 8, keep: int = 0) -> None:
        RotatingKVCache.__init__(self, max_size=max_size, keep=keep)
        self.snapshot: tuple[Any, ...] = (None, None, 0, 0)

    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls(stock.max_size, stock.keep)
        cache.keys, cache.values = stock.keys, stock.values
        cache.offset, cache._idx = stock.offset, stock._idx
        return cache

    def length(self) -> int:
        return int(self.offset)

    def can_trim(self, n: int, /) -> bool:
        return n == 0 or self.offset - n == self.snapshot[2]

    def trim_rows(self, n: int, /) -> None:
        self.keys, self.values, self.offset, self._idx = self.snapshot

    def start_speculation(self) -> None:
        self.snapshot = (self.keys, self.values, self.offset, self._idx)

    def checkpoint(self) -> Callable[[], None]:
        return lambda: None

    def arrays(self) -> list[mx.array]:
        held: list[mx.array | None] = [self.keys, self.values]
        return [array for array in held if array is not None]

    def move_out(self) -> object:
        stock: Any = RotatingKVCache(self.max_size, self.keep)
        stock.keys, stock.values = self.keys, self.values
        stock.offset, stock._idx = self.offset, self._idx
        self.keys = self.values = None
        return stock


# In caches of rows.


@fault(
    "A trim does not ask the other caches of its group.",
    caught_by="test_a_group_is_trimmed_as_a_whole_or_not_at_all",
)
class LayersAreCheckedOneByOne:
    suite = TestRows

    @staticmethod
    def plant(patch: Patch) -> None:
        patch.setattr(CacheGroup, "check_trim", lambda self, asking, n: None)


@fault(
    "A trim of too many tokens silently trims what there is.",
    caught_by="test_an_impossible_trim_is_refused_and_changes_nothing",
)
class TrimIsClamped:
    suite = TestRows

    @staticmethod
    def plant(patch: Patch) -> None:
        trim, can_trim = RewindableKVCache.trim, RewindableKVCache.can_trim

        def clamped(self: Any, n: int, /) -> int:
            return trim(self, min(n, self.length()))

        patch.setattr(RewindableKVCache, "trim", clamped)
        patch.setattr(RewindableKVCache, "can_trim", lambda self, n: can_trim(self, n) or n > 0)


# In sliding windows.


@fault(
    "A cache handed back keeps the whole buffer alive.",
    caught_by="test_a_cache_handed_back_keeps_no_larger_buffer_alive",
)
class AViewOfTheBufferIsReturned:
    suite = TestWindow

    @staticmethod
    def plant(patch: Patch) -> None:
        def view(self: Any) -> RotatingKVCache:
            stock: Any = self._source or RotatingKVCache(self.max_size, self.keep)
            if self.keys is not None:
                rows = min(self.rows(), self.max_size)
                stock.keys = self.keys[..., self.rows() - rows : self.rows(), :]
                stock.values = self.values[..., self.rows() - rows : self.rows(), :]
                stock.offset, stock._idx = self.offset, rows
            self.keys = self.values = None
            self.offset = self._idx = 0
            return stock  # type: ignore[no-any-return]

        patch.setattr(RewindableRotatingKVCache, "release", view)


@fault(
    "A window that moves to the start of its buffer loses the order of its rows.",
    caught_by="test_a_layer_sees_what_mlx_lms_cache_shows",
)
class OrderIsLostWhenTheBufferIsFull:
    suite = TestWindow

    @staticmethod
    def plant(patch: Patch) -> None:
        update = RewindableRotatingKVCache.update_and_fetch

        def changed(self: Any, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
            before = self.rows()
            seen = update(self, keys, values)
            if self.rows() < before + keys.shape[2]:
                self.keys = mx.roll(self.keys, 1, 2)
            return seen

        patch.setattr(RewindableRotatingKVCache, "update_and_fetch", changed)


@fault(
    "A window trims rows, and gives the next ones positions as if it had not.",
    caught_by="test_trimmed_tokens_leave_no_trace",
)
class PositionsAreNotTrimmed:
    suite = TestWindow

    @staticmethod
    def plant(patch: Patch) -> None:
        trim = RewindableRotatingKVCache.trim

        def changed(self: Any, n: int, /) -> int:
            trimmed = trim(self, n)
            self.offset += n
            return trimmed

        patch.setattr(RewindableRotatingKVCache, "trim", changed)


@fault(
    "The rows of a ring that mlx-lm has wrapped are adopted out of order.",
    caught_by="test_caches_prefilled_by_mlx_lm_in_any_way_are_adopted",
)
class ARingIsAdoptedOutOfOrder:
    suite = TestWindow

    @staticmethod
    def plant(patch: Patch) -> None:
        def as_stored(self: Any, rows: mx.array) -> mx.array:
            return rows[..., : max(self._idx, min(self.offset, self.max_size)), :]

        patch.setattr(RotatingKVCache, "_temporal_order", as_stored)


@fault(
    "A verify block is masked as mlx-lm masks prefill, and does not see the sinks.",
    caught_by="test_a_layer_sees_what_mlx_lms_cache_shows",
)
class BlocksDoNotSeeTheSinks:
    suite = TestWindowWithSinks

    @staticmethod
    def plant(patch: Patch) -> None:
        mask = RewindableRotatingKVCache.make_mask

        def stocks(self: Any, N: int, *args: Any, **kwargs: Any) -> Any:
            if N == 1:
                return mask(self, N, *args, **kwargs)
            prior = min(self.rows(), self.max_size - 1)
            return create_causal_mask(N, prior, window_size=self.max_size)

        patch.setattr(RewindableRotatingKVCache, "make_mask", stocks)


# In recurrent states.


@fault(
    "A failed forward leaves its block in the layers that had consumed it.",
    caught_by="test_a_failed_forward_leaves_no_trace",
)
class AFailedBlockStaysInTheState:
    suite = TestStateWithoutRecords

    @staticmethod
    def plant(patch: Patch) -> None:
        patch.setattr(RewindableArraysCache, "abort_block", lambda self: None)


@fault(
    "A state is rewound, and its reported length is not.",
    caught_by="test_trimmed_tokens_leave_no_trace",
)
class TheLengthOfAStateIsNotTrimmed:
    suite = TestState

    @staticmethod
    def plant(patch: Patch) -> None:
        trim = RewindableArraysCache.trim

        def changed(self: Any, n: int, /) -> int:
            length = self._length
            trimmed = trim(self, n)
            self._length = length
            return trimmed

        patch.setattr(RewindableArraysCache, "trim", changed)


@fault(
    "The second trim of a block is one token late.",
    caught_by="test_a_block_is_trimmed_in_several_steps",
)
class TheSecondTrimIsOneOff:
    suite = TestState

    @staticmethod
    def plant(patch: Patch) -> None:
        def change(fed: int, restore: Restore, old: Any) -> tuple[Restore, Any]:
            calls: list[int] = []

            def shifted(m: int) -> Entries:
                calls.append(m)
                return restore(min(m + len(calls) - 1, fed))

            return shifted, old

        recorded_as(patch, change)


@fault(
    "A rewind restores the recurrent state, and leaves the convolution window after the block.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TheConvWindowIsNotRestored:
    suite = TestQwen3Next

    @staticmethod
    def plant(patch: Patch) -> None:
        recorded_as(
            patch, lambda fed, restore, old: (lambda m: (restore(fed)[0], restore(m)[1]), old)
        )


@fault(
    "A rewind restores the convolution window one row late.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TheConvWindowIsOneRowLate:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        recorded_as(
            patch, lambda _, restore, old: (lambda m: (restore(m + 1)[0], restore(m)[1]), old)
        )


@fault(
    "Rows are rewound, and the recurrent state stays as the whole block left it.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class RejectedTokensStayInTheState:
    suite = TestQwen3Next

    @staticmethod
    def plant(patch: Patch) -> None:
        recorded_as(patch, lambda fed, restore, _: (lambda _m: restore(fed), restore(fed)))


@fault(
    "A rewind over a whole block takes its last state, at index -1.",
    caught_by="test_a_rewind_spans_several_forwards",
)
class TheSnapshotIsTheLastState:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        recorded_as(
            patch, lambda fed, restore, old: (restore, (entries_of(old)[0], restore(fed)[1]))
        )


@fault(
    "A rewind restores the recurrent state one token late.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TheStateIsOneTokenLate:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        recorded_as(
            patch, lambda _, restore, old: (lambda m: (restore(m)[0], restore(m + 1)[1]), old)
        )


@fault(
    "A rewind restores the recurrent state one token early.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TheStateIsOneTokenEarly:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        def change(_: int, restore: Restore, old: Any) -> tuple[Restore, Any]:
            def early(m: int) -> Entries:
                return restore(m)[0], restore(m - 1)[1] if m > 1 else entries_of(old)[1]

            return early, old

        recorded_as(patch, change)


def pick_state(patch: Patch, shift: int) -> None:
    """Pick another one of the states that a block kept."""
    after = KeptStates.after

    def shifted(self: KeptStates, m: int, /) -> mx.array:
        return after(self, min(max(1, m + shift), len(self.states)))

    patch.setattr(KeptStates, "after", shifted)


@fault(
    "Of the states that a block kept, one token too early is picked.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class PickedStateIsOneEarly:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        pick_state(patch, -1)


@fault(
    "Of the states that a block kept, one token too late is picked.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class PickedStateIsOneLate:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        pick_state(patch, 1)


# In the replay that is fused into the next block.


@fault(
    "A deferred rewind replays one row fewer before the next block.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class FusedRowsAreOneFewer:
    suite = TestQwen35Folded

    @staticmethod
    def plant(patch: Patch) -> None:
        resume = FusedReplay.resume
        patch.setattr(FusedReplay, "resume", lambda self, m: resume(self, m + -1))


@fault(
    "A deferred rewind replays one row more before the next block.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class FusedRowsAreOneMore:
    suite = TestQwen35Folded

    @staticmethod
    def plant(patch: Patch) -> None:
        resume = FusedReplay.resume
        patch.setattr(FusedReplay, "resume", lambda self, m: resume(self, m + 1))


@fault(
    "A deferred rewind that is carried out replays one row fewer.",
    caught_by="test_mlx_lm_continues_from_a_models_caches",
)
class ReplayedRowsAreOneFewer:
    suite = TestQwen35Folded

    @staticmethod
    def plant(patch: Patch) -> None:
        after = FusedReplay.after
        patch.setattr(FusedReplay, "after", lambda self, m: after(self, max(1, m + -1)))


@fault(
    "A deferred rewind that is carried out replays one row more.",
    caught_by="test_mlx_lm_continues_from_a_models_caches",
)
class ReplayedRowsAreOneMore:
    suite = TestQwen35Folded

    @staticmethod
    def plant(patch: Patch) -> None:
        after = FusedReplay.after
        patch.setattr(FusedReplay, "after", lambda self, m: after(self, max(1, m + 1)))


@fault(
    "Tokens kept of the block before the last rejected one are not replayed.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TheFusedBlockIsForgotten:
    suite = TestQwen35Folded

    @staticmethod
    def plant(patch: Patch) -> None:
        def forgetting(self: FusedReplay, m: int, /) -> ResumePoint:
            own = self.inputs.first(self.fused + m)
            rest = [part[:, self.fused :] for part in (own.qkv, own.a, own.b)]
            return ResumePoint(self.before, type(own)(*rest))

        patch.setattr(FusedReplay, "resume", forgetting)


# In groups.


@fault(
    "Keeping no token keeps every token.",
    caught_by="test_a_rewind_spans_several_forwards",
)
class KeepingNothingKeepsEverything:
    suite = TestLlama

    @staticmethod
    def plant(patch: Patch) -> None:
        keep = CacheGroup.keep
        patch.setattr(CacheGroup, "keep", lambda self, m: keep(self, m or self.fed()))


@fault(
    "A window keeps the first rejected token.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class OneTokenTooManyIsKept:
    suite = TestGptOss

    @staticmethod
    def plant(patch: Patch) -> None:
        keep = CacheGroup.keep
        patch.setattr(CacheGroup, "keep", lambda self, m: keep(self, min(m + 1, self.fed())))


@fault(
    "Tokens kept of a block that was rewound as a whole are not replayed.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class TokensAreNotReplayed:
    suite = TestLfm2

    @staticmethod
    def plant(patch: Patch) -> None:
        patch.setattr(CacheGroup, "to_replay", lambda self: None)


@fault(
    "Recurrent layers are replayed by a forward whose attention starts with no rows.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class ReplayRunsOverScratchRows:
    suite = TestQwen35

    @staticmethod
    def plant(patch: Patch) -> None:
        keep, start = CacheGroup.keep, CacheGroup.start
        before: list[list[mx.array | None]] = []

        def entries(group: CacheGroup) -> list[list[mx.array | None]]:
            return [m.entries() for m in group.members() if isinstance(m, RewindableArraysCache)]

        def started(self: CacheGroup) -> None:
            start(self)
            before[:] = entries(self)

        def kept(self: CacheGroup, m: int, /) -> None:
            rewinds = 0 < m < self.fed()
            fed: Sequence[mx.array] = self._fed_tokens.blocks
            tokens = mx.concatenate([*fed], axis=1)[:, :m] if fed else None
            keep(self, m)
            if tokens is not None and rewinds:
                scratch = model("qwen3_5").make_cache()
                states = [s for s in scratch if isinstance(s, RewindableArraysCache)]
                for state, old in zip(states, before, strict=True):
                    state.cache = [*old]
                model("qwen3_5").forward(tokens, scratch)
                ours = [s for s in self.members() if isinstance(s, RewindableArraysCache)]
                for state, replayed in zip(ours, states, strict=True):
                    state.cache = replayed.entries()
            before[:] = entries(self)

        patch.setattr(CacheGroup, "start", started)
        patch.setattr(CacheGroup, "keep", kept)


class LeftWindowTests:
    """Tests a window that was left, while another one is open."""

    def test_a_window_that_was_left_refuses_to_keep(self) -> None:
        caches = cold(model("dense"), ids(5))[1]
        with speculation(caches) as old:
            pass
        with speculation(caches):
            feed(model("dense"), caches, ids(4, seed=1))
            try:
                old.keep(1)
            except RewindError:
                return
            raise AssertionError("it kept one token of another window's block")


@fault(
    "A window that was left trims the block of the next window.",
    caught_by="test_a_window_that_was_left_refuses_to_keep",
)
class WindowActsAfterItsEnd:
    suite = LeftWindowTests

    @staticmethod
    def plant(patch: Patch) -> None:
        patch.setattr(Window, "leave", lambda self: None)


class InterruptedWindowTests:
    """Tests interrupts at lines near the end of a window."""

    def test_an_interrupt_at_the_end_of_a_window(self) -> None:
        total = lines("gpt_oss", False)
        for at in range(total, total - 400, -7):
            try:
                check("gpt_oss", False, at)
            except (SpeculateError, AttributeError, TypeError) as error:
                raise AssertionError(str(error)) from error


@fault(
    "An interrupt between two attributes of a cache that moves loses its content.",
    caught_by="test_an_interrupt_at_the_end_of_a_window",
)
class InterruptLosesAMovingCache:
    suite = InterruptedWindowTests

    @staticmethod
    def plant(patch: Patch) -> None:
        patch.setattr(adopt_module, "contents", lambda caches: lambda: None)
