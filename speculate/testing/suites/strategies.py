"""Tests that a strategy inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from speculate.protocols import SpeculativeModel, Strategy
from speculate.testing.laws import strategies as laws
from speculate.testing.toy import ToyHead, ToyModel


class StrategyTests(ABC):
    """Proves a strategy. Derive from it, name the class `Test...`, and say how to make one."""

    @abstractmethod
    def make_strategy(self) -> Strategy:
        """A fresh strategy with proposers of its own. A clock, if it has one, is made up."""

    def target(self) -> SpeculativeModel:
        """The model to decode with: a `ToyModel` with a head, unless its proposers need another."""
        return ToyModel(head=ToyHead())

    def test_its_proposers_are_told_apart(self) -> None:
        laws.its_proposers_are_told_apart(self.make_strategy)

    def test_plans_can_be_carried_out(self) -> None:
        laws.plans_can_be_carried_out(self.make_strategy)

    def test_plans_depend_on_what_was_observed_alone(self) -> None:
        laws.plans_depend_on_what_was_observed_alone(self.make_strategy)

    def test_it_may_be_asked_before_it_has_heard(self) -> None:
        laws.it_may_be_asked_before_it_has_heard(self.make_strategy)

    def test_it_is_host_code(self) -> None:
        laws.it_is_host_code(self.make_strategy)

    def test_it_changes_no_text(self) -> None:
        laws.it_changes_no_text(self.make_strategy, self.target())
