"""Every planted mistake is caught by a check that the library passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from speculate.errors import RewindError
from tests.backends.breaking import check_failed_forward
from tests.backends.checks import (
    Script,
    check_adopted_ring,
    check_over_trim,
    check_partial_rewinds,
    check_rounds,
    check_sinks,
    check_small_hand_back,
    check_tail_independence,
)
from tests.backends.driving import ids, model
from tests.faults import faults

Check = Callable[[], object]
SCRIPT: Script = [(3, 0), (3, 0), (3, 2), (0, None), (3, None), (3, 1)]


def rounds(family: str, script: Script = SCRIPT, *, probe: bool = True) -> Check:
    return lambda: check_rounds(model(family), ids(200), 12, script, probe=probe)


def tails(family: str, *, singly: bool = False) -> Check:
    return lambda: check_tail_independence(model(family), 12, [3], singly=singly)


def partial_rewinds() -> None:
    check_partial_rewinds(model("qwen3_5"))


def failed_forward() -> None:
    check_failed_forward("lfm2", 2, "feed_forward")


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], Check]] = [
    (faults.conv_window_of_the_next_token, tails("qwen3_5")),
    (faults.conv_window_of_the_next_token, rounds("qwen3_next")),
    (faults.state_of_the_next_token, tails("qwen3_5")),
    (faults.state_of_the_token_before, rounds("qwen3_5")),
    (faults.snapshot_is_the_last_state, tails("qwen3_5", singly=True)),
    (faults.snapshot_is_the_last_state, tails("qwen3_next", singly=True)),
    (faults.second_rewind_of_a_block_is_one_off, partial_rewinds),
    (faults.rejected_tokens_stay_in_the_state, rounds("qwen3_5")),
    (faults.replay_over_scratch_rows, rounds("qwen3_5")),
    (faults.length_of_a_state_runs_on, tails("qwen3_5")),
    (faults.snapshot_by_reference, rounds("gpt_oss")),
    (faults.ring_taken_over_out_of_order, check_adopted_ring),
    (faults.ring_taken_over_out_of_order, lambda: check_adopted_ring(4)),
    (faults.order_lost_when_the_buffer_fills_up, rounds("gpt_oss", [(6, None)] * 22, probe=False)),
    (faults.positions_of_a_window_run_on, rounds("gpt_oss")),
    (faults.rows_are_trimmed_as_far_as_they_go, lambda: check_over_trim(model("dense"), 12, 16)),
    (faults.layers_are_checked_one_at_a_time, lambda: check_over_trim(model("qwen3_5"), 12, 4)),
    (faults.a_rewind_of_zero_does_nothing, rounds("dense")),
    (faults.one_token_too_many_is_kept, rounds("gpt_oss")),
    (faults.owed_tokens_are_forgotten, rounds("lfm2")),
    (
        faults.a_failed_block_stays_in_the_state,
        failed_forward,
    ),
    (faults.sinks_slide_out_of_a_blocks_view, lambda: check_sinks(model("qwen3"), 8, 12)),
    (faults.a_view_of_the_buffer_is_handed_back, check_small_hand_back),
]


@pytest.mark.parametrize(
    ("fault", "check"),
    PLANTED,
    ids=[f"{n}-{fault.__name__}" for n, (fault, _) in enumerate(PLANTED)],
)
def test_a_planted_fault_is_caught(
    fault: Callable[[pytest.MonkeyPatch], None], check: Check
) -> None:
    check()
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        # No check expects a refusal, so that one shows the fault just as well.
        with pytest.raises((AssertionError, RewindError)):
            check()
