"""`Adaptive` when times change, with a made-up clock."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import pytest

from speculate import Adaptive
from speculate.protocols import Costs, Round
from speculate.strategies.adaptive import RETRY_AFTER_ROUNDS
from speculate.strategies.round_times import CostStore
from tests.support.simulated import FLAT, PLAIN, STEEP, Guesser, World

SEEDS: Final = range(5)
TWICE: Final = {rows: time if rows == 1 else 2 * time for rows, time in FLAT.items()}
"""Plain decoding as before, and every block twice as slow."""


def settled(
    right: float = 0.75, step: float = 0.1, seed: int = 0, noise: float = 0.02
) -> tuple[World, Guesser, Adaptive]:
    """A world with one proposer, and a strategy that has known it for a while."""
    guesser = Guesser("mtp", step, right)
    world = World(guesser, seed=seed, noise=noise)
    strategy = Adaptive(guesser, costs=world.costs())
    world.run(strategy, 400)
    return world, guesser, strategy


def plans(rounds: list[Round]) -> list[tuple[str | None, int]]:
    return [(round.proposer, round.planned) for round in rounds]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "case", [(0.75, 0.1, 0.2), (0.8, 0.3, 0.6), (0.8, 0.2, 0.1), (0.75, 0.1, 1.0)], ids=str
)
def test_drafting_that_becomes_slower_or_faster_is_noticed_within_32_rounds(
    case: tuple[float, float, float], seed: int
) -> None:
    right, before, after = case
    world, guesser, strategy = settled(right, before, seed)
    guesser.step = after
    rounds = world.run(strategy, 400)
    assert world.share(rounds[32:]) > 0.92
    # Less than 15 % is not distinguished from a change of the machine's speed.
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.16)


@pytest.mark.parametrize("seed", SEEDS)
def test_drafting_that_became_far_too_slow_is_given_up_and_tried_again(seed: int) -> None:
    world, guesser, strategy = settled(seed=seed)
    guesser.step = 1.0
    rounds = world.run(strategy, 300)
    assert sum(round.drafted for round in rounds[16:]) == 0
    guesser.step = 0.1
    rounds = world.run(strategy, 1000)
    back = next(i for i, round in enumerate(rounds) if round.drafted)
    assert rounds[back].context - rounds[0].context <= RETRY_AFTER_ROUNDS
    assert world.share(rounds[back + 32 :]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("right", [0.5, 0.75, 0.95])
def test_verification_that_becomes_slower_is_noticed_within_32_rounds(
    right: float, seed: int
) -> None:
    world, _, strategy = settled(right, seed=seed)
    world.forward = TWICE
    rounds = world.run(strategy, 400)
    assert world.share(rounds[32:]) > 0.95
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.06)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [2.0, 0.5, 5.0, 0.2])
def test_a_machine_that_changes_as_a_whole_changes_nothing_after_two_plain_rounds(
    factor: float, seed: int
) -> None:
    world, _, strategy = settled(seed=seed)
    world.pace *= factor
    rounds = world.run(strategy, 600)
    plain = [i for i, round in enumerate(rounds) if not round.planned]
    assert len(plain) == 2
    assert plain[-1] < 12
    assert world.share(rounds[plain[-1] + 1 :]) > 0.97
    assert strategy.plain_seconds == pytest.approx(world.pace, rel=0.06)


@pytest.mark.parametrize("factor", [2.0, 0.2])
def test_it_changes_nothing_either_without_drafts(factor: float) -> None:
    found = []
    for pace in (1.0, factor):
        world, _, strategy = settled(0.05, noise=0.0)
        world.pace *= pace
        found.append(plans(world.run(strategy, 400)))
        assert strategy.plain_seconds == pytest.approx(world.pace)
    assert found[0] == found[1]


def test_where_no_proposer_is_right_there_are_hardly_any_drafts() -> None:
    drafted = []
    for seed in range(24):
        world, _, strategy = settled(0.05, noise=0.0, seed=seed)
        drafted.append(sum(depth for _, depth in plans(world.run(strategy, 400))))
    # Drafts that are right by luck make it draft for a while, in some texts.
    assert sum(drafted) / len(drafted) < 20
    assert max(drafted) < 60


@pytest.mark.parametrize("rounds", [(40,), (0,), (40, 41, 42), (40, 42, 44), (5, 40, 90)], ids=str)
@pytest.mark.parametrize("right", [0.05, 0.5, 0.75, 0.95])
def test_what_disturbs_up_to_three_rounds_changes_nothing(
    rounds: tuple[int, ...], right: float
) -> None:
    found = []
    for disturbed in ((), rounds):
        guesser = Guesser("mtp", 0.1, right)
        world = World(guesser, noise=0.0)
        world.disturbed = dict.fromkeys(disturbed, 10.0)
        found.append(plans(world.run(Adaptive(guesser, costs=world.costs()), 400)))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [4, 6, 30])
def test_another_program_that_runs_for_a_while_does_not_end_drafting(
    length: int, seed: int
) -> None:
    world, _, strategy = settled(seed=seed)
    first = len(world.rounds) + 10
    world.disturbed = dict.fromkeys(range(first, first + length), 6.0)
    rounds = world.run(strategy, 800)
    assert world.share(rounds[10 + length + 16 :]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_draft_that_pages_weights_in_does_not_count(seed: int) -> None:
    guesser = Guesser("mtp", 0.1, 0.75)
    world = World(guesser, seed=seed)
    world.disturbed = {0: 30.0}
    rounds = world.run(Adaptive(guesser, costs=world.costs()), 200)
    assert world.share(rounds) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_where_verification_is_steep_there_are_no_drafts(seed: int) -> None:
    guesser = Guesser("mtp", 0.1, 0.75)
    world = World(guesser, forward=STEEP, seed=seed)
    rounds = world.run(Adaptive(guesser, costs=world.costs()), 512)
    assert world.time / PLAIN <= 1.01 * sum(round.emitted for round in rounds)


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_decoding_is_timed_now_and_then_in_any_case(seed: int) -> None:
    # A table says that it takes half as long again as it does, so that drafts seem to pay.
    guesser = Guesser("mtp", 0.1, 0.2)
    world = World(guesser, seed=seed)
    costs = world.costs()
    wrong = {rows: time * 1.5 if rows == 1 else time for rows, time in costs.forward.items()}
    strategy = Adaptive(guesser, costs=Costs(0, wrong, costs.draft))
    rounds = world.run(strategy, 2000)
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.06)
    assert world.share(rounds[-800:]) > 0.97


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pace", [0.5, 1.3, 3.0])
def test_costs_of_another_day_are_taken_for_what_the_machine_does_today(
    pace: float, seed: int, tmp_path: Path
) -> None:
    guesser = Guesser("mtp", 0.2, 0.6)
    world = World(guesser, seed=seed)
    CostStore(tmp_path).save("key", world.costs())
    world.pace *= pace
    strategy = Adaptive(guesser, cache_folder=tmp_path)
    assert not strategy.needs_costs("key", 200, None)
    rounds = world.run(strategy, 300)
    assert plans(rounds[:2]) == [(None, 0), (None, 0)]
    assert world.share(rounds[2:]) > 0.9
    assert strategy.plain_seconds == pytest.approx(world.pace, rel=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_unknown_costs_begin_with_one_plain_round_and_are_learned(seed: int) -> None:
    guesser = Guesser("mtp", 0.3, 0.8)
    world = World(guesser, seed=seed)
    strategy = Adaptive(guesser, measure=False)
    assert strategy.plain_seconds == 0.0
    rounds = world.run(strategy, 300)
    assert plans(rounds[:1]) == [(None, 0)]
    assert rounds[1].proposer == "mtp"
    assert world.share(rounds[16:]) > 0.93
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.1)


@pytest.mark.parametrize("costs", [None, Costs(0, {1: PLAIN, 9: 2 * PLAIN}, {"mtp": 0.002})])
def test_a_fixed_clock_observes_no_time(costs: Costs | None) -> None:
    found = []
    for pace, noise in ((1.0, 0.0), (7.0, 0.5)):
        guesser = Guesser("mtp", 0.1 * pace, 0.8)
        world = World(guesser, noise=noise)
        strategy = Adaptive(guesser, clock="fixed", costs=costs)
        found.append(plans(world.run(strategy, 300)))
        world.pace, world.disturbed = PLAIN * pace, dict.fromkeys(range(0, 900, 7), 9.0)
        guesser.step = 0.4
        found[-1] += plans(world.run(strategy, 300))
    assert found[0] == found[1]
    assert any(depth for _, depth in found[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_caller_that_takes_its_time_does_not_make_plain_decoding_free(seed: int) -> None:
    world, guesser, strategy = settled(0.05, 0.3, seed)
    slow = World(guesser, seed=seed)
    for round in world.run(strategy, 40):
        # What was launched ahead is done when the caller comes back.
        late = attrs.evolve(round, seconds=0.01 * PLAIN, overlapped_seconds=3 * PLAIN)
        strategy.observe(round if round.proposer else late)
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.1)
    guesser.right = 0.9
    rounds = slow.run(strategy, 800)
    assert slow.share(rounds[-50:]) > 0.9


def test_a_caller_that_takes_some_time_is_part_of_a_step_s() -> None:
    world, _, strategy = settled(0.05, 0.3)
    for round in world.run(strategy, 40):
        if round.proposer is None:
            strategy.observe(
                attrs.evolve(round, seconds=0.7 * PLAIN, overlapped_seconds=0.3 * PLAIN)
            )
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.1)
