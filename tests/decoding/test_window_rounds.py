"""After every round, the next logits are those of a cold prefill of the text."""

from __future__ import annotations

import pytest

from speculate import speculation
from speculate.testing.models import ROUNDS
from tests.support import tiny
from tests.support.cache_contents import (
    ALL,
    CUT_ANYWHERE,
    FAMILIES,
    HYBRIDS,
    adapted,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
    model,
)
from tests.support.model_contracts import Contracts


def drafts(accepted: tuple[int, ...], depth: int = 3) -> list[tuple[int, int]]:
    """Rounds of so many drafts, of which so many are right."""
    return [(1 + depth, 1 + right) for right in accepted]


@pytest.mark.parametrize("prompt", [1, 6, 8])
def test_every_mistake_where_a_window_fills_up(prompt: int) -> None:
    Contracts(model("gpt_oss")).test_rejected_tokens_leave_no_trace([prompt])


@pytest.mark.parametrize("family", ALL)
def test_the_second_rewind_in_a_row(family: str) -> None:
    """A snapshot that the first rewind shifted, or left out, shows in the second."""
    rounds = drafts((0, 0, 2, 0, 3, 0, 3, 3, 0, 1, 0))
    Contracts(model(family)).test_rejected_tokens_leave_no_trace([11, 0], rounds)


@pytest.mark.parametrize("family", [*HYBRIDS, "qwen3_5_moe", "lfm2"])
def test_recurrent_layers_after_attention(family: str) -> None:
    """Replaying a recurrent layer over rows of its own lets attention see other rows."""
    driven = model(family)
    if family.startswith("qwen3_5"):
        driven = adapted(tiny.hybrid(num_hidden_layers=8), tiny.recurrence(family))
    rounds = drafts((0, 1, 2) * 4)
    Contracts(driven).test_rejected_tokens_leave_no_trace([5], rounds)


@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_without_drafts_follow_accepted_ones(family: str) -> None:
    rounds = [(5, 5), (1, 1), (1, 1), (5, 4), (1, 1), (8, 1), (1, 1)]
    Contracts(model(family)).test_rejected_tokens_leave_no_trace([8], rounds)


@pytest.mark.parametrize(
    "family",
    [
        "gpt_oss",
        *(pytest.param(f, marks=pytest.mark.soak) for f in ALL if f not in ("gpt_oss", "lfm2")),
    ],
)
def test_a_rejected_draft_every_round_for_500_tokens(family: str) -> None:
    """Long enough that a sliding window's buffer fills up several times."""
    driven = adapted(tiny.windowed(layers=2)) if family == "gpt_oss" else model(family)
    Contracts(driven, length=520).test_rejected_tokens_leave_no_trace([8], drafts((0,) * 500, 4))


@pytest.mark.soak
@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("prompt", [*range(10), 23, 62, 63, 64, 129, 199])
def test_next_logits_for_every_prompt(family: str, prompt: int) -> None:
    contracts = Contracts(model(family), length=400)
    contracts.test_rejected_tokens_leave_no_trace([prompt], ROUNDS)
    every_prefix = [(width, kept) for width in range(1, 10) for kept in range(width + 1)]
    contracts.test_rejected_tokens_leave_no_trace([prompt], every_prefix)
    contracts.test_a_rewind_spans_several_forwards(prompt, [(9,), (2, 5), (1,) * 7])
    if family in CUT_ANYWHERE:
        contracts.test_a_trimmed_block_leaves_no_trace(prompt, range(1, 10))


@pytest.mark.parametrize("family", ALL)
def test_caches_after_rounds_are_those_of_a_cold_prefill(family: str) -> None:
    text, last_token = ids(40), ids(40)[30]
    caches = cold(model(family), text[:20])[1]
    with speculation(caches) as window:
        for start, drafts, good in ((20, 4, 2), (22, 7, 8), (30, 2, 1)):
            block = [*text[start : start + good], *ids(1 + drafts - good, seed=7)]
            feed(model(family), caches, block)
            window.keep(good)
        # One whole block more: whatever was still owed has been fed.
        feed(model(family), caches, text[31:34])
        window.keep(3)
    fresh = cold(model(family), text[:34])[1]
    assert_same(holding(caches), holding(fresh), "34 tokens")
    found, expected = (feed(model(family), c, [last_token]) for c in (caches, fresh))
    assert_equal(found, expected, "next logits")
