"""Tests that an adapter inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest

from speculate.models.adapter import StockAdapter
from speculate.protocols import Proposer, SpeculativeModel, StockModel
from speculate.testing.driving import Driven
from speculate.testing.laws import adapters, cutting, failing, models
from speculate.testing.lossless import assert_lossless


class ModelTests(ABC):
    """Proves an adapter. Derive from it, name the class `Test...`, and say how to make one.

    Take a model of random weights that is tiny, whose attention comes before a recurrent layer
    if it has both, and whose windows are short: of 8 rows.

    Attributes:
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU, unless
            the family itself rounds blocks otherwise than single steps, as Mamba2 does: 1e-5.
        whole_blocks: Of some layer only whole blocks can be taken back.
    """

    tolerance: float = 0.0
    whole_blocks: bool = False

    @abstractmethod
    def make_model(self) -> SpeculativeModel:
        """The model. The same one may be given every time."""

    def stock_model(self) -> StockModel | None:
        """The model of mlx-lm that `make_model`'s drives, if it drives one.

        An adapter derived from `StockAdapter` tells it by itself.
        """
        return None

    def proposers(self) -> Sequence[Proposer]:
        """Who drafts, besides one that is wrong in chosen places."""
        return ()

    def driven(self) -> Driven:
        """What the laws drive."""
        model, stock = self.make_model(), self.stock_model()
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        return Driven(model, stock, self.tolerance)

    def test_a_forward_says_what_mlx_lm_says(self) -> None:
        driven = self.driven()
        if driven.stock is None:
            pytest.skip("there is no model of mlx-lm to compare with: override stock_model")
        models.a_forward_says_what_mlx_lm_says(driven)

    def test_blocks_are_single_steps(self) -> None:
        models.blocks_are_single_steps(self.driven())

    def test_whatever_is_rejected_leaves_no_trace(self) -> None:
        models.whatever_is_rejected_leaves_no_trace(self.driven())

    def test_a_rewind_reaches_over_several_forwards(self) -> None:
        models.a_rewind_reaches_over_several_forwards(self.driven())

    def test_a_cut_leaves_no_trace(self) -> None:
        if not self.whole_blocks:
            cutting.a_cut_leaves_no_trace(self.driven())
            cutting.a_cut_leaves_no_trace(self.driven(), singly=True)

    def test_a_block_is_cut_again_and_again(self) -> None:
        if not self.whole_blocks:
            cutting.a_block_is_cut_again_and_again(self.driven())

    def test_a_trim_is_exact_or_refused(self) -> None:
        cutting.a_trim_is_exact_or_refused(self.driven())

    def test_nothing_is_trimmed_where_nothing_is_recorded(self) -> None:
        cutting.nothing_is_trimmed_where_nothing_is_recorded(self.driven())

    def test_leaving_a_window_takes_back_what_was_not_kept(self) -> None:
        models.leaving_a_window_takes_back_what_was_not_kept(self.driven())

    def test_a_forward_that_fails_consumes_nothing(self) -> None:
        failing.a_forward_that_fails_consumes_nothing(self.driven())

    def test_mlx_lms_caches_are_adopted_and_given_back(self) -> None:
        adapters.mlx_lms_caches_are_adopted_and_given_back(self.driven())

    def test_mlx_lm_goes_on_where_a_model_stopped(self) -> None:
        adapters.mlx_lm_goes_on_where_a_model_stopped(self.driven())

    def test_what_cannot_go_back_is_refused_and_nothing_moves(self) -> None:
        adapters.what_cannot_go_back_is_refused_and_nothing_moves(self.driven())

    def test_a_cache_of_two_layers_is_refused_and_nothing_moves(self) -> None:
        adapters.a_cache_of_two_layers_is_refused_and_nothing_moves(self.driven())

    def test_caches_of_a_model_are_one_group(self) -> None:
        adapters.caches_of_a_model_are_one_group(self.driven())

    def test_a_late_cache_counts_from_its_position(self) -> None:
        adapters.a_late_cache_counts_from_its_position(self.driven())

    def test_bad_input_is_refused_and_changes_nothing(self) -> None:
        adapters.bad_input_is_refused_and_changes_nothing(self.driven())

    def test_the_stock_model_stays_as_it_is(self) -> None:
        adapters.the_stock_model_stays_as_it_is(self.driven())

    def test_nobody_changes_the_text(self) -> None:
        assert_lossless(self.make_model(), self.proposers(), tokens=20, tolerance=self.tolerance)
