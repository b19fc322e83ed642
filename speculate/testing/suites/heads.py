"""Tests that a multi-token-prediction head inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod

import mlx.core as mx

from speculate.protocols import MTPHead
from speculate.testing.laws import heads as laws


class HeadTests(ABC):
    """Proves a head. Derive from it, name the class `Test...`, and say how to make one.

    Attributes:
        width: Of the target's hidden states.
        vocab_size: Columns of the target's logits.
        tolerance: How far numbers may be off, in units of the largest. 0 on the CPU.
        dtype: Of the target's hidden states.
    """

    width: int
    vocab_size: int
    tolerance: float = 0.0
    dtype: mx.Dtype = mx.float32

    @abstractmethod
    def make_head(self) -> MTPHead:
        """The head. The same one may be given every time."""

    def driven(self) -> laws.DrivenHead:
        """What the laws drive."""
        return laws.DrivenHead(
            self.make_head(),
            width=self.width,
            vocab_size=self.vocab_size,
            tolerance=self.tolerance,
            dtype=self.dtype,
        )

    def test_one_step_over_many_rows_is_many_steps(self) -> None:
        laws.one_step_over_many_rows_is_many_steps(self.driven())

    def test_a_pass_gives_a_row_for_each_token(self) -> None:
        laws.a_pass_gives_a_row_for_each_token(self.driven())

    def test_both_inputs_of_a_row_count(self) -> None:
        laws.both_inputs_of_a_row_count(self.driven())

    def test_a_chain_is_taken_back_without_a_trace(self) -> None:
        laws.a_chain_is_taken_back_without_a_trace(self.driven())

    def test_its_caches_are_its_own(self) -> None:
        laws.its_caches_are_its_own(self.driven())

    def test_bad_input_is_refused_and_leaves_no_row(self) -> None:
        laws.bad_input_is_refused_and_leaves_no_row(self.driven())
