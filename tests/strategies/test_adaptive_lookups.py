"""`Adaptive` with lookups: match onsets, and priors shared between kinds and proposers."""

from __future__ import annotations

from typing import Final

import pytest

from speculate import Adaptive
from speculate.protocols import DraftScore, Forecast, Round
from speculate.strategies.acceptance_rates import (
    MIN_ONSET_AFTER_COPY,
    PRIOR_ACCEPTANCE,
    PRIOR_CORRELATION,
    MatchOnset,
    ProposerEstimate,
)
from tests.support.simulated import FLAT, Finder, Guesser, World

SEEDS: Final = range(5)
NOTHING: Final = Forecast(0, 0)


def launching(finder: Finder, seed: int) -> World:
    world = World(finder, forward=FLAT, seed=seed)
    world.launches = True
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_what_begins_to_be_found_is_asked_for_before_it_is_known(seed: int) -> None:
    # Something is found at two places of nine: at the first of them a launched step is too far.
    finder = Finder(0.9)
    finder.finds = lambda place: place % 9 in (4, 5)
    world = launching(finder, seed)
    strategy = Adaptive(finder, costs=world.costs())
    world.run(strategy, 300)
    rounds = [round for round in world.run(strategy, 600) if round.context % 9 == 4]
    assert len(rounds) > 20
    assert sum(round.drafted > 0 for round in rounds) > 0.9 * len(rounds)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nothing_begins_steps_are_launched_ahead(seed: int) -> None:
    finder = Finder(0.9)
    finder.finds = lambda place: place < 50
    world = launching(finder, seed)
    strategy = Adaptive(finder, costs=world.costs())
    world.run(strategy, 300)
    assert all(round.planned_proposer is None for round in world.run(strategy, 300))


@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_copy_has_just_ended_the_next_one_is_awaited_for_a_while(seed: int) -> None:
    finder = Finder(0.9)
    finder.finds = lambda place: place < 300
    world = launching(finder, seed)
    rounds = world.run(Adaptive(finder, costs=world.costs()), 500)
    behind = [round for round in rounds if round.context >= 302]
    # Nothing began in this text: it was found from its first token on.
    assert behind[0].planned_proposer == "lookup"
    assert not behind[0].drafted
    assert all(round.planned_proposer is None for round in behind[80:])


def test_a_copy_that_ended_makes_the_next_one_likely() -> None:
    found = MatchOnset()
    found.on_copy_end()
    assert found.probability == MIN_ONSET_AFTER_COPY
    for _ in range(100):
        found.observe(NOTHING, plain=True)
    assert found.probability < 0.001
    for _ in range(100):
        found.observe(NOTHING, plain=True)
        found.observe(Forecast(2, 5), plain=True)
    known = found.probability
    found.on_copy_end()
    assert found.probability == known > MIN_ONSET_AFTER_COPY


def test_beginnings_are_counted_where_nothing_was_found_and_one_token_came() -> None:
    found = MatchOnset()
    for _ in range(200):
        found.observe(Forecast(3, 5), plain=True)  # goes on, and does not begin
    assert found.probability == pytest.approx(0.05)
    for _ in range(200):
        found.observe(NOTHING, plain=True)
        found.observe(Forecast(4, 5), plain=False)  # after a draft it is another position
        found.observe(NOTHING, plain=True)
    assert found.probability < 0.001
    for _ in range(200):
        found.observe(NOTHING, plain=True)
        found.observe(Forecast(2, 5), plain=True)
    # From a place without: half of them are the second in a row, and begin nothing.
    assert found.probability > 0.9
    assert found.bucket == 2


class Scripted(Guesser):
    """A lookup that says how right its first drafts were, by kind, and has none."""

    def __init__(self, chances: dict[int, float]) -> None:
        super().__init__("lookup", 0.0, 0.9)
        self._chances = chances

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        return NOTHING

    def scores(self) -> list[DraftScore]:
        return [DraftScore(kind, 0, 100, round(100 * part)) for kind, part in self._chances.items()]


def contender(chances: dict[int, float]) -> ProposerEstimate:
    """A lookup that was seen."""
    made = ProposerEstimate(Scripted(chances))
    made.observe(Round(0, None, 0, 0, 0, 1, False))
    return made


def test_kinds_that_were_not_seen_are_like_those_that_were() -> None:
    def first(chances: dict[int, float], kind: int) -> float:
        return contender(chances).survival(kind, 1)[0]

    assert first({8: 1.0}, 2) > 0.85 > 0.5 >= first({}, 2)
    assert first({2: 0.0}, 8) < 0.35 < 0.8 < first({}, 8)
    # What was seen of a kind itself counts more.
    assert first({2: 0.0, 8: 1.0}, 8) > 0.9


def test_expectations_are_shared_in_part() -> None:
    made = ProposerEstimate(Guesser("draft", 0.2, 0.5))
    made.set_prior(0.2)
    expected = PRIOR_ACCEPTANCE + PRIOR_CORRELATION * (0.2 - PRIOR_ACCEPTANCE)
    assert made.survival(0, 1)[0] == pytest.approx(expected)
    unseen, made = made.first_draft_rate, ProposerEstimate(Guesser("draft", 0.2, 0.5))
    made.observe(Round(0, "draft", 1, 1, 1, 2, False))
    before = made.first_draft_rate
    made.set_prior(0.0)  # it has been seen by now
    assert unseen is None
    assert before is not None
    assert made.first_draft_rate == before
