"""Tests that a proposer inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from speculate.protocols import Proposer, SpeculativeModel
from speculate.testing.laws import foreseeing
from speculate.testing.laws import proposers as laws
from speculate.testing.lossless import assert_lossless
from speculate.testing.telling import Telling
from speculate.testing.toy import ToyHead, ToyModel


class ProposerTests(ABC):
    """Proves a proposer. Derive from it, name the class `Test...`, and say how to make one.

    Attributes:
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.
    """

    tolerance: float = 0.0

    @abstractmethod
    def make_proposer(self) -> Proposer:
        """A fresh proposer."""

    def target(self) -> SpeculativeModel:
        """The model that it drafts for: a `ToyModel` with a head, unless it needs another."""
        return ToyModel(head=ToyHead())

    def telling(self) -> Telling:
        """What the laws drive."""
        return Telling(self.make_proposer, self.target(), self.tolerance)

    def test_drafts_are_ids_within_the_limit(self) -> None:
        laws.drafts_are_ids_within_the_limit(self.telling())

    def test_drafts_depend_on_the_text_alone(self) -> None:
        laws.drafts_depend_on_the_text_alone(self.telling())

    def test_a_prompt_may_come_in_any_chunks(self) -> None:
        laws.a_prompt_may_come_in_any_chunks(self.telling())

    def test_settling_ends_a_draft_and_nothing_else(self) -> None:
        laws.settling_ends_a_draft_and_nothing_else(self.telling())

    def test_begin_forgets_everything(self) -> None:
        laws.begin_forgets_everything(self.telling())

    def test_what_is_drawn_is_what_choose_gave(self) -> None:
        laws.what_is_drawn_is_what_choose_gave(self.telling())

    def test_random_numbers_are_left_alone(self) -> None:
        laws.random_numbers_are_left_alone(self.telling())

    def test_a_failure_in_between_leaves_it_in_step(self) -> None:
        laws.a_failure_in_between_leaves_it_in_step(self.telling())

    def test_what_is_foreseen_depends_on_the_text_alone(self) -> None:
        foreseeing.what_is_foreseen_depends_on_the_text_alone(self.telling())

    def test_how_far_it_is_behind_is_told(self) -> None:
        laws.how_far_it_is_behind_is_told(self.telling())

    def test_it_changes_no_text(self) -> None:
        assert_lossless(self.target(), [self.make_proposer()], tokens=20, tolerance=self.tolerance)
