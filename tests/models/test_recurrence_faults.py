"""One token too many or too few, in either way of taking a recurrence back: who notices."""

from __future__ import annotations

from typing import Final

import mlx.core as mx
import pytest

from speculate import Fixed, speculation
from tests.decoding import kit
from tests.faults.test_faults import planted
from tests.models.test_families import Family

ROUNDS: Final = "test_whatever_is_rejected_leaves_no_trace"
SEVERAL: Final = "test_a_rewind_reaches_over_several_forwards"
CUTS: Final = "test_a_cut_leaves_no_trace"
AGAIN: Final = "test_a_block_is_cut_again_and_again"
NOBODY: Final = "test_nobody_changes_the_text"
STOCK: Final = "test_mlx_lm_goes_on_where_a_model_stopped"
DECODING: Final = "decoding"
HANDED_BACK: Final = "handed back"

NOTICED: Final = {
    "picked_state_is_one_late": (ROUNDS, SEVERAL, CUTS, AGAIN, NOBODY, DECODING, HANDED_BACK),
    "picked_state_is_one_early": (ROUNDS, SEVERAL, CUTS, AGAIN, NOBODY, DECODING, HANDED_BACK),
    "folded_rows_are_one_more": (ROUNDS, NOBODY, DECODING),
    "folded_rows_are_one_fewer": (ROUNDS, NOBODY, DECODING),
    "the_fold_before_is_forgotten": (ROUNDS, NOBODY, DECODING),
    "replayed_rows_are_one_more": (ROUNDS, STOCK, HANDED_BACK),
    "replayed_rows_are_one_fewer": (ROUNDS, STOCK, HANDED_BACK),
}
"""Mistake -> contracts of the conformance kit that fail, and other checks that catch it."""


def decoding(name: str) -> None:
    """Scores of every token, where every draft is wrong somewhere."""
    proposer = kit.scripted(name, kit.PROMPT, 12, lambda n: (1, 2, 0)[n % 3])
    kit.check_tokens(name, kit.PROMPT, kit.decode(name, Fixed(proposer, 3), count=12))


def handed_back(name: str) -> None:
    """What mlx-lm gets after a rejection."""
    caches, text = kit.stock_caches(name), kit.text_of(9)
    with speculation(caches) as window:
        kit.get(name).model.forward(mx.array([text]), caches)
        window.keep(6)
    kit.check_holds(name, caches, text[:6])


def run(suite: type[Family], check: str) -> None:
    others = {DECODING: decoding, HANDED_BACK: handed_back}
    if check in others:
        others[check](suite.name)
    else:
        getattr(suite(), check)()


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_folded"])
def test_without_a_mistake_nothing_shows(name: str) -> None:
    decoding(name)
    handed_back(name)


@pytest.mark.parametrize("fault", NOTICED)
def test_at_least_three_notice(fault: str) -> None:
    assert len(NOTICED[fault]) >= 3
    for check in NOTICED[fault]:
        with planted(f"caches.{fault}") as suite, pytest.raises(AssertionError):
            run(suite, check)
