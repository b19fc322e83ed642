"""Off-by-one faults in either way of rewinding a recurrence are caught by several tests."""

from __future__ import annotations

from typing import Final

import mlx.core as mx
import pytest

from speculate import Fixed, speculation
from tests.faults import caches as caches
from tests.faults.planting import planted
from tests.models.test_families import Family
from tests.support import reference

ROUNDS: Final = "test_rejected_tokens_leave_no_trace"
SEVERAL: Final = "test_a_rewind_spans_several_forwards"
CUTS: Final = "test_a_trimmed_block_leaves_no_trace"
AGAIN: Final = "test_a_block_is_trimmed_in_several_steps"
LOSSLESS: Final = "test_output_is_that_of_plain_decoding"
STOCK: Final = "test_mlx_lm_continues_from_a_models_caches"
DECODING: Final = "decoding"
RETURNED: Final = "handed back"

CAUGHT_BY: Final = {
    "PickedStateIsOneLate": (ROUNDS, SEVERAL, CUTS, AGAIN, LOSSLESS, DECODING, RETURNED),
    "PickedStateIsOneEarly": (ROUNDS, SEVERAL, CUTS, AGAIN, LOSSLESS, DECODING, RETURNED),
    "FusedRowsAreOneMore": (ROUNDS, LOSSLESS, DECODING),
    "FusedRowsAreOneFewer": (ROUNDS, LOSSLESS, DECODING),
    "TheFusedBlockIsForgotten": (ROUNDS, LOSSLESS, DECODING),
    "ReplayedRowsAreOneMore": (ROUNDS, STOCK, RETURNED),
    "ReplayedRowsAreOneFewer": (ROUNDS, STOCK, RETURNED),
}
"""For each fault, the contracts that catch it, and other checks that do."""


def decoding(name: str) -> None:
    """Compare the logits of every token, with a wrong token in every draft."""
    proposer = reference.scripted(name, reference.PROMPT, 12, lambda n: (1, 2, 0)[n % 3])
    reference.check_tokens(
        name, reference.PROMPT, reference.decode(name, Fixed(proposer, 3), count=12)
    )


def returned(name: str) -> None:
    """Compare the caches that mlx-lm gets after a rejection."""
    caches, text = reference.stock_caches(name), reference.text_of(9)
    with speculation(caches) as window:
        reference.get(name).model.forward(mx.array([text]), caches)
        window.keep(6)
    reference.check_holds(name, caches, text[:6])


def run(suite: type[Family], check: str) -> None:
    others = {DECODING: decoding, RETURNED: returned}
    if check in others:
        others[check](suite.name)
    else:
        getattr(suite(), check)()


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_folded"])
def test_without_a_fault_every_check_passes(name: str) -> None:
    decoding(name)
    returned(name)


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_at_least_three_catch_it(fault: str) -> None:
    assert len(CAUGHT_BY[fault]) >= 3
    for check in CAUGHT_BY[fault]:
        with planted(f"caches.{fault}") as suite, pytest.raises(AssertionError):
            run(suite, check)
