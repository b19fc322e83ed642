"""Durations of rounds, and what a change is attributed to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from speculate.protocols import Costs
from speculate.strategies.round_times import (
    BASELINE_INTERVAL_ROUNDS,
    BASELINE_ROUNDS,
    CLOSE_CALL_INTERVAL_ROUNDS,
    CLOSE_CALL_SPEEDUP,
    PERSISTENT_ROUNDS,
    STALE_AFTER_ROUNDS,
    RoundTimes,
    interpolated,
)

COSTS: Final = Costs(0, {1: 0.02, 2: 0.022, 4: 0.03, 8: 0.06}, {"mtp": 0.002})


PAYS: Final = 2.0
"""Tokens per plain step where drafts are worth while."""


def timing(*, fresh: bool = True) -> RoundTimes:
    return RoundTimes(COSTS, {"mtp": False, "lookup": True}, 8, fresh=fresh)


def draft(timing: RoundTimes, times: Iterable[float], depth: int = 1) -> None:
    for time in times:
        timing.observe("mtp", depth, time)


def plain(timing: RoundTimes, seconds: float) -> int:
    """Let it check plain decoding: the number of rounds that it asks for."""
    rounds = 0
    while timing.needs_baseline(PAYS):
        timing.observe_plain(seconds)
        rounds += 1
    return rounds


@pytest.mark.parametrize(
    ("at", "expected"), [(1, 1.0), (2, 2.0), (3, 2.5), (4, 3.0), (6, 4.0), (0, 0.0)]
)
def test_between_and_beyond_known_places_lines_are_straight(at: int, expected: float) -> None:
    assert interpolated({4: 3.0, 1: 1.0, 2: 2.0}, at) == pytest.approx(expected)


def test_times_come_from_the_table_at_first() -> None:
    found = timing()
    assert found.of("mtp")[:3] == pytest.approx([1.0, 1.2, 1.5])
    assert found.of("lookup")[:3] == pytest.approx([1.0, 1.1, 1.3])
    assert found.baseline_seconds == 0.02
    assert not found.needs_baseline(PAYS)


def test_more_rows_never_take_less_whatever_was_measured() -> None:
    # Along a straight line five rows would take no time at all.
    found = RoundTimes(Costs(0, {1: 0.02, 3: 0.01}, {}), {"lookup": True}, 12)
    assert found.of("lookup") == [1.0] * 13


def test_after_a_long_pause_one_round_shows_what_a_proposer_takes_now() -> None:
    found = timing()
    draft(found, [0.24] * 9)
    assert found.of("mtp")[1] == pytest.approx(12.0)
    for _ in range(STALE_AFTER_ROUNDS):
        found.observe_plain(0.02)
    draft(found, [0.024])
    assert found.of("mtp")[:3] == pytest.approx([1.0, 1.2, 1.5])


def test_a_table_of_another_day_is_checked_and_one_of_now_is_not() -> None:
    assert plain(timing(), 0.05) == 0
    old = timing(fresh=False)
    assert plain(old, 0.05) == BASELINE_ROUNDS
    assert old.baseline_seconds == 0.05
    guess = RoundTimes(None, {"mtp": False}, 8)
    assert plain(guess, 0.05) == 1
    assert guess.baseline_seconds == 0.05


def test_one_slow_round_makes_no_proposer_slow_and_one_fast_round_is_believed() -> None:
    slow, fast = timing(), timing()
    draft(slow, [0.5])
    assert slow.of("mtp")[1] == pytest.approx(1.2)
    draft(slow, [0.5])
    assert slow.of("mtp")[1] == pytest.approx(25.0)
    draft(fast, [0.02])
    assert fast.of("mtp")[1] == pytest.approx(1.0)


def test_a_depth_goes_by_its_own_times_and_the_others_with_it() -> None:
    found = timing()
    draft(found, [0.048] * 3)
    assert found.of("mtp")[1] == pytest.approx(2.4)
    assert found.of("mtp")[2] == pytest.approx(3.0)
    draft(found, [0.06] * 3, depth=2)
    assert found.of("mtp")[2] == pytest.approx(3.0)
    assert found.of("lookup")[1] == pytest.approx(1.1)


def test_a_machine_that_slows_down_is_blamed_on_no_proposer() -> None:
    found = timing()
    draft(found, [0.024] * 20)
    draft(found, [0.048] * 4)
    assert plain(found, 0.04) == BASELINE_ROUNDS
    assert found.baseline_seconds == 0.04
    assert found.of("mtp")[1] == pytest.approx(1.2)
    draft(found, [0.048] * 20)
    assert found.of("mtp")[1] == pytest.approx(1.2)
    assert not found.needs_baseline(PAYS)


def test_a_proposer_that_stays_slow_while_plain_decoding_is_not_is_blamed() -> None:
    found = timing()
    draft(found, [0.024] * 20)
    draft(found, [0.048] * 4)
    assert plain(found, 0.02) == BASELINE_ROUNDS
    assert found.of("mtp")[1] == pytest.approx(1.2)
    draft(found, [0.048] * (PERSISTENT_ROUNDS - 4))
    assert found.of("mtp")[1] == pytest.approx(2.4)
    assert found.of("mtp")[3] == pytest.approx(2 * (1.5 + 0.3))
    assert found.baseline_seconds == 0.02


def test_rounds_that_were_slow_in_between_are_no_beginning_of_a_change() -> None:
    found = timing()
    draft(found, [0.024] * 20)
    for _ in range(10):
        draft(found, [0.2] * 3 + [0.024] * 4)
    assert found.of("mtp")[1] == pytest.approx(1.2)
    assert not found.needs_baseline(PAYS)


def test_drift_is_followed_without_a_check() -> None:
    found = timing()
    seconds = 0.02
    for _ in range(300):
        seconds *= 1.002
        found.observe_plain(seconds)
        plain(found, seconds)
    assert found.baseline_seconds == pytest.approx(seconds, rel=0.02)


def test_plain_decoding_is_checked_after_so_many_rounds_without_it() -> None:
    found = timing()
    draft(found, [0.024] * (BASELINE_INTERVAL_ROUNDS - 1))
    assert not found.needs_baseline(PAYS)
    draft(found, [0.024])
    assert plain(found, 0.021) == BASELINE_ROUNDS
    assert found.idle_rounds("mtp") == BASELINE_ROUNDS
    assert found.baseline_seconds == 0.021


def test_where_drafts_hardly_pay_plain_decoding_is_checked_more_often() -> None:
    found = timing()
    draft(found, [0.024] * (CLOSE_CALL_INTERVAL_ROUNDS - 1))
    assert not found.needs_baseline(1.02)
    draft(found, [0.024])
    assert not found.needs_baseline(CLOSE_CALL_SPEEDUP)
    assert found.needs_baseline(1.02)
    # It is asked for until it is known.
    assert plain(found, 0.021) == BASELINE_ROUNDS


def test_of_plain_rounds_that_checked_it_the_mean_counts_and_none_that_was_disturbed() -> None:
    for times, expected in (([0.038, 0.042], 0.04), ([0.2, 0.042], 0.042)):
        found = timing(fresh=False)
        for time in times:
            assert found.needs_baseline(PAYS)
            found.observe_plain(time)
        assert not found.needs_baseline(PAYS)
        assert found.baseline_seconds == pytest.approx(expected)
