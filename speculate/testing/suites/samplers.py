"""Tests that a sampler inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from speculate.protocols import Sampler
from speculate.testing.laws import samplers as laws


class SamplerTests(ABC):
    """Proves a sampler. Derive from it, name the class `Test...`, and say how to make one.

    Attributes:
        same_text: It promises the text of plain decoding; otherwise only the law of one.
        draws_itself: It draws from its own seed. Not so around a callable of mlx-lm, which
            draws from `mx.random`.
        reads_text: What it chooses depends on the text before, as with penalties.
    """

    same_text: bool = True
    draws_itself: bool = True
    reads_text: bool = False

    @abstractmethod
    def make_sampler(self) -> Sampler:
        """A fresh sampler: the same one every time, seed included."""

    def test_a_round_without_drafts_gives_one_token(self) -> None:
        laws.a_round_without_drafts_gives_one_token(self.make_sampler)

    def test_what_choose_gives_is_a_token_and_its_law(self) -> None:
        laws.what_choose_gives_is_a_token_and_its_law(self.make_sampler)

    def test_the_text_is_that_of_plain_decoding(self) -> None:
        if self.same_text:
            laws.the_text_does_not_depend_on_the_drafts(self.make_sampler)
        else:
            laws.the_text_has_the_law_of_plain_decoding(self.make_sampler)

    def test_laws_that_are_none_change_nothing(self) -> None:
        if self.same_text:
            laws.laws_that_are_none_do_not_change_the_text(self.make_sampler)
        else:
            laws.laws_that_are_none_do_not_change_the_law(self.make_sampler)

    def test_the_same_seed_gives_the_same_text(self) -> None:
        laws.the_same_seed_gives_the_same_text(self.make_sampler)

    def test_right_drafts_stand(self) -> None:
        if not self.reads_text:
            laws.right_drafts_stand(self.make_sampler)

    def test_random_numbers_are_left_alone(self) -> None:
        if self.draws_itself:
            laws.random_numbers_are_left_alone(self.make_sampler)
