"""Tests that a cache backend inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from speculate.backends.group import join
from speculate.protocols import Rollbackable
from speculate.testing.kinds import CacheKind
from speculate.testing.laws import caches as laws
from speculate.testing.laws import grouping, lending, marking
from speculate.testing.layers import Attention, Layer
from speculate.testing.suites.machine import anything_in_any_order_leaves_the_text


class CacheTests(ABC):
    """Proves a cache backend. Derive from it, name the class `Test...`, and say how to make one.

    Attributes:
        whole_blocks: Only whole blocks can be taken back.
        prefill_differs: Of a block that is not recorded, mlx-lm shows the rows less than of
            single steps, as it does of a window with sinks.
    """

    whole_blocks: bool = False
    prefill_differs: bool = False

    @abstractmethod
    def make_cache(self) -> Rollbackable:
        """A fresh, empty cache."""

    @abstractmethod
    def adopt(self, stock: object, /) -> Rollbackable:
        """Move the content of mlx-lm's cache into a new one."""

    def make_caches(self) -> list[Rollbackable]:
        """The caches of one list: a single one, unless several are to be proved together."""
        return join([self.make_cache()])

    def layers(self) -> Sequence[Layer]:
        """What uses each of the caches: a layer of attention, which calls `update_and_fetch`."""
        return [Attention()]

    def adopt_caches(self, stock: Sequence[object]) -> list[Rollbackable]:
        """Adopt the caches of one list."""
        return join([self.adopt(cache) for cache in stock])

    def kind(self) -> CacheKind:
        """What the laws drive."""
        return CacheKind(
            self.make_caches,
            self.layers(),
            self.adopt_caches,
            whole_blocks=self.whole_blocks,
            prefill_differs=self.prefill_differs,
        )

    def test_an_empty_cache_answers(self) -> None:
        laws.an_empty_cache_answers(self.kind())

    def test_a_layer_sees_what_mlx_lm_shows_it(self) -> None:
        laws.a_layer_sees_what_mlx_lm_shows_it(self.kind())

    def test_what_is_taken_back_leaves_no_trace(self) -> None:
        laws.what_is_taken_back_leaves_no_trace(self.kind())

    def test_single_steps_are_taken_back_as_blocks_are(self) -> None:
        laws.single_steps_are_taken_back_as_blocks_are(self.kind())

    def test_several_blocks_are_taken_back_at_once(self) -> None:
        laws.several_blocks_are_taken_back_at_once(self.kind())

    def test_a_block_is_taken_back_bit_by_bit(self) -> None:
        laws.a_block_is_taken_back_bit_by_bit(self.kind())

    def test_the_newest_64_tokens_can_be_taken_back(self) -> None:
        laws.the_newest_64_tokens_can_be_taken_back(self.kind())

    def test_too_much_is_refused_and_changes_nothing(self) -> None:
        laws.too_much_is_refused_and_changes_nothing(self.kind())

    def test_can_trim_tells_the_truth(self) -> None:
        laws.can_trim_tells_the_truth(self.kind())

    def test_starting_and_stopping_keep_the_content(self) -> None:
        marking.starting_and_stopping_keep_the_content(self.kind())

    def test_a_checkpoint_returns_to_where_it_was_made(self) -> None:
        marking.a_checkpoint_returns_to_where_it_was_made(self.kind())

    def test_a_forward_that_fails_leaves_no_trace(self) -> None:
        marking.a_forward_that_fails_leaves_no_trace(self.kind())

    def test_mlx_lm_goes_on_where_a_cache_stopped(self) -> None:
        lending.mlx_lm_goes_on_where_a_cache_stopped(self.kind())

    def test_adopting_and_handing_back_move_the_text(self) -> None:
        lending.adopting_and_handing_back_move_the_text(self.kind())

    def test_a_text_is_adopted_however_mlx_lm_fed_it(self) -> None:
        lending.a_text_is_adopted_however_mlx_lm_fed_it(self.kind())

    def test_no_buffer_stays_alive_behind_what_is_handed_back(self) -> None:
        lending.no_buffer_stays_alive_behind_what_is_handed_back(self.kind())

    def test_arrays_are_all_that_a_cache_holds(self) -> None:
        lending.arrays_are_all_that_a_cache_holds(self.kind())

    def test_a_saved_cache_can_be_loaded_or_is_not_saved(self) -> None:
        lending.a_saved_cache_can_be_loaded_or_is_not_saved(self.kind())

    def test_a_list_is_taken_back_together_or_not_at_all(self) -> None:
        grouping.a_list_is_taken_back_together_or_not_at_all(self.kind())

    def test_a_late_cache_starts_at_its_position(self) -> None:
        grouping.a_late_cache_starts_at_its_position(self.kind())

    def test_anything_in_any_order_leaves_the_text(self) -> None:
        anything_in_any_order_leaves_the_text(self.kind())
