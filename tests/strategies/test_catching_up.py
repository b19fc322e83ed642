"""`Adaptive` with proposers that keep a backlog, and a simulated clock."""

from __future__ import annotations

from typing import Final

import pytest

from speculate import Adaptive
from speculate.strategies.round_times import BATCHED_ROW_COST, MIN_BATCH_ROWS, RoundTimes
from tests.support.simulated import PLAIN, Finder, Sleeper, World

SEEDS: Final = range(5)
CHEAP: Final = 0.02
"""A token of a batch in steps, where a batch is bound by reading weights."""
EXPENSIVE: Final = 0.2
"""The same where it is bound by arithmetic."""


@pytest.mark.parametrize("row", [CHEAP, EXPENSIVE])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_without_right_guesses_costs_what_has_to_be_taken_in_and_a_hundredth(
    row: float, seed: int
) -> None:
    sleepers = [Sleeper("mtp", 0.1, 0.1, row, 96), Sleeper("draft", 0.2, 0.1, row, 96)]
    world = World(*sleepers, seed=seed)
    strategy = Adaptive(*sleepers, costs=world.costs())
    rounds = world.run(strategy, 256)
    # Each is asked at the beginning, and its prompt is taken in.
    assert world.time / PLAIN - 256 < 96 * row * 0.3 + 7
    rounds = world.run(strategy, 4000)
    taken_in = sum(round.emitted for round in rounds) * row * 0.3
    spent = sum(round.seconds for round in rounds) / PLAIN - 4000
    assert spent < taken_in + 0.012 * 4000


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_is_right_is_asked_however_long_its_backlog_where_that_is_cheap(
    seed: int,
) -> None:
    sleeper = Sleeper("draft", 0.15, 0.85, CHEAP, 1000)
    world = World(sleeper, seed=seed)
    rounds = world.run(Adaptive(sleeper, costs=world.costs()), 300)
    assert sum(round.drafted > 0 for round in rounds) > 0.9 * len(rounds)


@pytest.mark.parametrize(("left", "asks"), [(12, False), (400, True)])
def test_it_has_to_pay_in_what_is_left_of_the_text(left: int, asks: bool) -> None:
    sleeper = Sleeper("draft", 0.15, 0.85, BATCHED_ROW_COST, 900)
    world = World(sleeper)
    rounds = world.run(Adaptive(sleeper, costs=world.costs()), left, limit=True)
    assert any(round.drafted for round in rounds) == asks


@pytest.mark.parametrize("row", [CHEAP, EXPENSIVE])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_becomes_right_is_back_within_1536_tokens(row: float, seed: int) -> None:
    sleeper = Sleeper("mtp", 0.1, 0.05, row)
    world = World(sleeper, seed=seed)
    strategy = Adaptive(sleeper, costs=world.costs())
    world.run(strategy, 600)
    sleeper.right = 0.9
    world.run(strategy, 1536)
    assert world.share(world.run(strategy, 300)) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_was_good_comes_back_at_once(seed: int) -> None:
    sleeper, finder = Sleeper("mtp", 0.1, 0.85, EXPENSIVE), Finder(0.95)
    finder.finds = lambda place: 300 <= place < 700
    world = World(sleeper, finder, seed=seed)
    strategy = Adaptive(sleeper, finder, costs=world.costs())
    rounds = world.run(strategy, 1000)
    assert sleeper.missed < 12
    back = next(round for round in rounds if round.context > 710 and round.proposer == "mtp")
    assert back.context < 740


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round_that_caught_up_makes_no_proposer_slow(seed: int) -> None:
    sleeper = Sleeper("mtp", 0.1, 0.8, EXPENSIVE, 900)
    world = World(sleeper, seed=seed)
    strategy = Adaptive(sleeper, costs=world.costs(), clock="wall")
    rounds = world.run(strategy, 400)
    assert world.share(rounds[2:]) > 0.9
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.1)


def test_what_a_row_of_a_batch_takes_is_learned_from_one_and_believed_of_all() -> None:
    world = World(Sleeper("mtp", 0.1, 0.8, 0.1), Sleeper("draft", 0.3, 0.8, 0.1))
    timing = RoundTimes(world.costs(), {"mtp": False, "draft": False, "lookup": True}, 8)
    assert timing.catch_up_time("draft", 100) == pytest.approx(100 * 0.3 * BATCHED_ROW_COST)
    assert timing.catch_up_time("lookup", 100) == 0
    round = timing.of("mtp")[2]
    timing.observe("mtp", 2, PLAIN * (round + MIN_BATCH_ROWS * 0.1 * 0.1), backlog=MIN_BATCH_ROWS)
    assert timing.catch_up_time("draft", 100) == pytest.approx(100 * 0.3 * 0.1)
    # A disturbed one takes longer, and says nothing.
    timing.observe("mtp", 2, PLAIN * 50, backlog=MIN_BATCH_ROWS)
    assert timing.catch_up_time("draft", 100) == pytest.approx(100 * 0.3 * 0.1)
    # Of few rows what a round varies by is as much.
    timing.observe("mtp", 2, PLAIN * round, backlog=MIN_BATCH_ROWS - 1)
    assert timing.catch_up_time("draft", 100) == pytest.approx(100 * 0.3 * 0.1)
    assert timing.of("mtp")[2] == round
