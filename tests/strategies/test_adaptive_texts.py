"""`Adaptive` when texts change, with a made-up clock: who is right, how far, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from speculate import Adaptive
from speculate.protocols import Costs, Round
from speculate.strategies.adaptive import MAX_DEPTH, RETRY_AFTER_ROUNDS
from tests.support.simulated import FLAT, PLAIN, STEEP, Finder, Guesser, World

SEEDS: Final = range(6)


def first(rounds: Sequence[Round], proposer: str, times: int = 10) -> int:
    """The first of so many consecutive rounds with a draft."""
    who = [round.proposer == proposer for round in rounds]
    return next(i for i in range(len(who)) if all(who[i : i + times]))


def parked(rounds: Sequence[Round]) -> int:
    """The first of 32 rounds in which there are four drafts at most."""
    drafts = [round.planned > 0 for round in rounds]
    return next(i for i in range(len(drafts)) if sum(drafts[i : i + 32]) <= 4)


def tokens(rounds: Sequence[Round]) -> int:
    return sum(round.emitted for round in rounds)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [(0.85, 0.05, 100), (0.95, 0.0, 50), (0.7, 0.1, 200)], ids=str)
def test_when_drafts_are_no_longer_right_it_stops_and_when_they_are_again_it_goes_on(
    case: tuple[float, float, int], seed: int
) -> None:
    good, bad, allowed = case
    guesser = Guesser("mtp", 0.1, good)
    world = World(guesser, seed=seed)
    strategy = Adaptive(guesser, costs=world.costs())
    world.run(strategy, 500)
    before, guesser.right = world.time, bad
    rounds = world.run(strategy, 500)
    # The nearer to paying, the more rounds it takes to tell, and the less they cost.
    assert parked(rounds) < allowed
    # Relative to plain decoding, including exploration.
    assert (world.time - before) / PLAIN < 1.05 * tokens(rounds)
    guesser.right = good
    rounds = world.run(strategy, 1500)
    back = first(rounds, "mtp")
    assert rounds[back].context - rounds[0].context < 2 * RETRY_AFTER_ROUNDS
    assert world.share(rounds[back + 100 :]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_never_seen_is_tried_also_where_a_guess_would_not_pay(seed: int) -> None:
    # Half the drafts have to be right for a round to pay; 9 of 10 are.
    slow = {1: 1.0, 2: 1.5, 3: 1.7, 5: 2.1, 9: 2.7}
    guesser = Guesser("draft", 0.1, 0.9)
    world = World(guesser, forward=slow, seed=seed)
    rounds = world.run(Adaptive(guesser, costs=world.costs()), 400)
    assert first(rounds, "draft", 4) < 150


@pytest.mark.parametrize("seed", SEEDS)
def test_of_another_text_less_is_expected(seed: int) -> None:
    guesser = Guesser("mtp", 0.1, 0.9)
    world = World(guesser, seed=seed)
    strategy = Adaptive(guesser, costs=world.costs())
    world.run(strategy, 500)
    before, guesser.right = world.time, 0.0
    strategy.begin()
    rounds = world.run(strategy, 512)
    assert parked(rounds) < 40
    assert (world.time - before) / PLAIN < 1.025 * tokens(rounds)


def way_back(clock: str, seed: int) -> int:
    """Tokens until drafts are made again that were all wrong and are right four times in five."""
    guesser = Guesser("mtp", 0.12, 0.0)
    world = World(guesser, seed=seed)
    fixed = Adaptive(guesser, clock="fixed")
    strategy = fixed if clock == "fixed" else Adaptive(guesser, costs=world.costs())
    world.run(strategy, 3000)
    guesser.right = 0.85
    rounds = world.run(strategy, 1000)
    return rounds[first(rounds, "mtp")].context - rounds[0].context


@pytest.mark.parametrize("seed", SEEDS)
def test_drafts_that_become_right_are_found_after_any_time(seed: int) -> None:
    assert way_back("fixed", seed) < 200


def test_they_are_by_the_wall_clock_too() -> None:
    ways = sorted(way_back("wall", seed) for seed in range(100))
    assert ways[50] < 60
    # One draft in seven is wrong anyway: sometimes several in a row.
    assert ways[97] < 200


def test_a_proposer_that_costs_nothing_and_is_right_drafts_as_deep_as_there_is_in_16_rounds() -> (
    None
):
    guesser = Guesser("mtp", 0.0, 1.0)
    world = World(guesser, forward={1: 1.0, 9: 1.0})
    rounds = world.run(Adaptive(guesser, costs=world.costs()), 300)
    assert {round.planned for round in rounds[16:]} == {MAX_DEPTH}


def test_one_that_is_always_right_drafts_as_deep_as_pays() -> None:
    # Up to 8 rows share the reading of the weights.
    curve = {1: 1.0, 8: 1.3, 9: 4.0}
    guesser = Guesser("mtp", 0.02, 1.0)
    world = World(guesser, forward=curve)
    forward = {rows: time * PLAIN for rows, time in curve.items()}
    strategy = Adaptive(guesser, costs=Costs(0, forward, {"mtp": 0.02 * PLAIN}))
    assert {round.planned for round in world.run(strategy, 400)[6:]} == {7}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("forward", [FLAT, STEEP], ids=["flat", "steep"])
def test_who_is_always_wrong_costs_three_percent_at_most(
    forward: dict[int, float], seed: int
) -> None:
    proposers = Guesser("mtp", 0.1, 0.0), Guesser("draft", 0.2, 0.0), Finder(0.0)
    world = World(*proposers, forward=forward, seed=seed)
    strategy = Adaptive(*proposers, costs=world.costs())
    rounds = world.run(strategy, 512, limit=True)
    assert tokens(rounds) == 512
    assert world.time / PLAIN <= 1.03 * 512
    assert sum(round.drafted for round in rounds[256:]) < 24


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_the_better_one_drafts_also_when_they_change_places(seed: int) -> None:
    chain, small = Guesser("mtp", 0.1, 0.85), Guesser("draft", 0.15, 0.3)
    world = World(chain, small, seed=seed)
    strategy = Adaptive(chain, small, costs=world.costs())
    rounds = world.run(strategy, 600)
    assert world.share(rounds[-100:]) > 0.95
    chain.right, small.right = 0.3, 0.9
    rounds = world.run(strategy, 1500)
    assert first(rounds, "draft") < RETRY_AFTER_ROUNDS
    assert world.share(rounds[-200:]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lookup_is_followed_while_others_draft_and_needs_no_trial(seed: int) -> None:
    chain, lookup = Guesser("mtp", 0.1, 0.6), Finder(0.1)
    world = World(chain, lookup, seed=seed)
    strategy = Adaptive(chain, lookup, costs=world.costs())
    rounds = world.run(strategy, 600)
    assert sum(round.proposer == "lookup" for round in rounds[-200:]) <= 1
    lookup.right = 0.95
    rounds = world.run(strategy, 600)
    start = first(rounds, "lookup")
    assert start < 16
    assert rounds[start].planned > 1
    assert world.share(rounds[-60:]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lookup_is_asked_where_it_finds_something_only(seed: int) -> None:
    chain, lookup = Guesser("mtp", 0.1, 0.5), Finder(0.95)
    lookup.finds = lambda place: place // 40 % 2 == 0
    world = World(chain, lookup, seed=seed)
    rounds = world.run(Adaptive(chain, lookup, costs=world.costs()), 800)
    late = rounds[len(rounds) // 3 :]
    finds = [round for round in late if lookup.finds(round.context)]
    others = [round for round in late if not lookup.finds(round.context)]
    assert {round.proposer for round in finds} == {"lookup"}
    assert {round.proposer for round in others} <= {"mtp", None}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_proposer_that_always_abstains_does_not_keep_another_from_drafting(seed: int) -> None:
    mute, small = Guesser("mtp", 0.1, 0.9, longest=0), Guesser("draft", 0.15, 0.8)
    world = World(mute, small, seed=seed)
    rounds = world.run(Adaptive(mute, small, costs=world.costs()), 600)
    assert first(rounds, "draft") < 16
    assert sum(round.planned_proposer == "mtp" for round in rounds[20:]) < 6


@pytest.mark.parametrize("seed", SEEDS)
def test_drafts_shorter_than_asked_for_count_for_what_they_are(seed: int) -> None:
    short = Guesser("mtp", 0.1, 0.95, longest=2)
    world = World(short, seed=seed)
    rounds = world.run(Adaptive(short, costs=world.costs()), 400)
    assert {round.drafted for round in rounds[20:]} == {2}
    assert world.share(rounds[20:]) == pytest.approx(1.0)


# Full acceptance, and rounds that were cut.


def deepest(rounds: Sequence[Round]) -> int:
    return max(round.planned for round in rounds)


@pytest.mark.parametrize("stops", [True, False], ids=["stop tokens", "budgets"])
def test_texts_that_end_in_the_middle_of_a_draft_do_not_make_drafts_shorter(stops: bool) -> None:
    found = []
    for length in (16, 1600):
        guesser = Guesser("mtp", 0.02, 1.0)
        world = World(guesser, forward={1: 1.0, 9: 1.2})
        strategy = Adaptive(guesser, costs=world.costs())
        rounds: list[Round] = []
        for _ in range(1600 // length):
            rounds += world.run(strategy, length, limit=not stops, stops=stops)
        assert length > 16 or sum(round.truncated for round in rounds) == 100
        whole = [round for round in rounds if not round.truncated]
        found.append(deepest(whole[:10]))
        assert deepest(whole) == MAX_DEPTH
    # Neither do they keep them from growing.
    assert found[0] >= found[1] - 2


def test_what_a_stop_token_kept_from_being_compared_was_not_wrong() -> None:
    # The first draft of each text is a stop token, and right.
    guesser = Guesser("mtp", 0.1, 0.8)
    world = World(guesser)
    strategy = Adaptive(guesser, costs=world.costs())
    world.run(strategy, 400)
    before = strategy.plan(None).depth
    for _ in range(40):
        strategy.observe(
            Round(0, "mtp", 3, 3, 1, 1, truncated=True, seconds=9.0, planned_proposer="mtp")
        )
    assert before > 1
    assert strategy.plan(None).depth >= before
    # Neither does the time of such a round say anything.
    assert strategy.plain_seconds == pytest.approx(PLAIN, rel=0.05)


@pytest.mark.parametrize("proposers", [1, 3])
def test_no_more_is_drafted_than_the_text_may_still_take(proposers: int) -> None:
    all_three = Guesser("mtp", 0.0, 1.0), Finder(1.0), Guesser("draft", 0.0, 1.0)
    some = all_three[:proposers]
    world = World(*some, forward={1: 1.0, 9: 1.0})
    strategy = Adaptive(*some, costs=world.costs())
    world.run(strategy, 400)
    for remaining in (1, 2, 3, 5, 8, MAX_DEPTH, MAX_DEPTH + 1, 10_000):
        plan = strategy.plan(remaining)
        # Another time may have been measured at the last depth but one.
        assert 0 <= min(MAX_DEPTH, remaining - 1) - plan.depth <= 1
        assert (plan.proposer is None) == (remaining == 1)
