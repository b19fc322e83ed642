"""What budget cost, and from what they are paid."""

from __future__ import annotations

from typing import Final

import attrs
import pytest

from speculate.protocols import Round
from speculate.strategies.acceptance_rates import ProposerEstimate
from speculate.strategies.adaptive import (
    EXPLORATION_SHARE,
    INITIAL_BALANCE_STEPS,
    MAX_BALANCE_STEPS,
    Candidate,
    ExplorationBudget,
)
from tests.support.simulated import Guesser

OTHER: Final = Candidate(ProposerEstimate(Guesser("draft", 0.1, 0.5)), 1, tokens=1.5, time=1.2)
"""What would be done without exploration: 1.25 tokens per plain round."""

EXPLORED: Final = Candidate(ProposerEstimate(Guesser("mtp", 0.1, 0.5)), 2, tokens=2.5, time=2.1)
"""Two drafts of which one and a half are expected to be right."""


def round_of(emitted: int, asked: str | None = "mtp", planned: int = 2) -> Round:
    drafted = planned if asked else 0
    return Round(
        index=0,
        proposer=asked,
        planned=planned,
        drafted=drafted,
        accepted=emitted - 1,
        emitted=emitted,
        truncated=False,
        seconds=0.02,
        context=100,
        planned_proposer=asked,
    )


def test_they_cost_what_was_earned_and_saved() -> None:
    budget = ExplorationBudget()
    assert not budget.spend(EXPLORED, INITIAL_BALANCE_STEPS + 0.1, OTHER)
    assert budget.spend(EXPLORED, INITIAL_BALANCE_STEPS, OTHER)
    assert budget.balance == 0.0
    assert not budget.spend(EXPLORED, 0.1, OTHER)
    for _ in range(round(0.5 / EXPLORATION_SHARE)):
        budget.accrue(1.0)
    assert budget.spend(EXPLORED, 0.4, OTHER)
    assert not budget.spend(EXPLORED, 0.4, OTHER)
    for _ in range(10_000):
        budget.accrue(1.0)
    assert not budget.spend(EXPLORED, MAX_BALANCE_STEPS + 0.1, OTHER)
    assert budget.spend(EXPLORED, MAX_BALANCE_STEPS, OTHER)


@pytest.mark.parametrize("emitted", [1, 2, 3])
def test_what_was_hoped_for_in_vain_is_made_up_for_and_what_was_won_is_returned(
    emitted: int,
) -> None:
    budget = ExplorationBudget()
    assert budget.spend(EXPLORED, 0.5, OTHER)
    budget.observe(round_of(emitted))
    expected = INITIAL_BALANCE_STEPS - 0.5 + (emitted - 2.5) / OTHER.rate
    assert budget.balance == pytest.approx(expected)
    # Once.
    budget.observe(round_of(1))
    assert budget.balance == pytest.approx(expected)


def test_a_plain_round_that_was_under_way_is_not_taken_for_the_trial() -> None:
    budget = ExplorationBudget()
    assert budget.spend(EXPLORED, 0.5, OTHER)
    budget.observe(round_of(1, asked=None, planned=0))
    budget.observe(round_of(1, asked="draft"))
    budget.observe(round_of(3, planned=3))
    assert budget.balance == pytest.approx(INITIAL_BALANCE_STEPS - 0.5)


def test_a_trial_that_was_cut_short_says_nothing_nor_does_one_of_another_text() -> None:
    budget = ExplorationBudget()
    assert budget.spend(EXPLORED, 0.5, OTHER)
    budget.observe(attrs.evolve(round_of(1), truncated=True))
    assert budget.balance == pytest.approx(INITIAL_BALANCE_STEPS - 0.5)
    budget = ExplorationBudget()
    assert budget.spend(EXPLORED, 0.5, OTHER)
    budget.begin()
    budget.observe(round_of(1))
    assert budget.balance == pytest.approx(INITIAL_BALANCE_STEPS - 0.5)


@pytest.mark.parametrize(("emitted", "won"), [(1, 0.0), (2, 0.0), (3, 1.0)])
def test_of_one_draft_more_by_the_same_only_that_draft_counts(emitted: int, won: float) -> None:
    budget = ExplorationBudget()
    deeper = attrs.evolve(OTHER, depth=2, tokens=1.7, time=1.5)
    assert budget.spend(deeper, 0.14, OTHER)
    budget.observe(round_of(emitted, asked="draft"))
    assert budget.balance == pytest.approx(INITIAL_BALANCE_STEPS - 0.14 + (won - 0.2) / OTHER.rate)
