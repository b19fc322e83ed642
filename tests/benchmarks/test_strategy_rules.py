"""The rules to compare with do what their sources say."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.strategy.fixed_choices import OFF, Arm
from benchmarks.strategy.replay import Recorded
from benchmarks.strategy.rules import TIERS, UCB1, AcceptedTiers
from speculate.protocols import Round, Strategy


def follow(strategy: Strategy, accepted: int, rounds: int, seconds: float = 1.0) -> list[int]:
    """Depths of rounds in each of which so many drafts are accepted, if there are as many."""
    depths = []
    for index in range(rounds):
        depth = strategy.plan(None).depth
        right = min(accepted, depth)
        depths.append(depth)
        name = "mtp" if depth else None
        strategy.observe(Round(index, name, depth, depth, right, right + 1, False, seconds))
    return depths


def test_tiers_wait_and_then_follow_what_is_accepted() -> None:
    strategy = AcceptedTiers(Recorded("mtp"))
    assert follow(strategy, accepted=7, rounds=15) == [3] * 15
    assert set(follow(strategy, accepted=7, rounds=20)) == {7}
    assert follow(strategy, accepted=0, rounds=20)[-1] == 1
    assert TIERS[0] == 1, "it never stops drafting"


@pytest.mark.parametrize(("accepted", "depth"), [(0, 1), (1, 3), (2, 3), (3, 7)])
def test_tiers_aim_at_one_more_than_was_accepted(accepted: int, depth: int) -> None:
    assert follow(AcceptedTiers(Recorded("mtp")), accepted, 60)[-1] == depth


def test_the_bandit_tries_all_and_settles_on_the_best() -> None:
    arms = [OFF, Arm("mtp", 1), Arm("mtp", 4)]
    strategy = UCB1([Recorded("mtp")], arms)
    depths = follow(strategy, accepted=4, rounds=2000)
    assert sorted(depths[:3]) == [0, 1, 4]
    assert Counter(depths[-500:])[4] > 450
