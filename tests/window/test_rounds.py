"""After every round, the next logits are those of a cold prefill of the text."""

from __future__ import annotations

import pytest

from speculate import speculation
from tests import tiny
from tests.backends.checks import EVERY_MISTAKE, check_rounds
from tests.backends.driving import (
    ALL,
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

PROMPTS = (1, 2, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 3 * tiny.WINDOW)


@pytest.mark.parametrize(
    ("family", "prompt"),
    [
        *((family, prompt) for family in ("qwen3_5", "gpt_oss") for prompt in PROMPTS),
        *((family, prompt) for family in ("qwen3_next", "dense", "lfm2") for prompt in (2, 9)),
        *((family, prompt) for family in tiny.FOLDED for prompt in (2, 9)),
    ],
)
def test_every_draft_length_wrong_at_every_index(family: str, prompt: int) -> None:
    reached = check_rounds(model(family), ids(100), prompt, EVERY_MISTAKE, probe=False)
    assert reached > prompt + 2 * tiny.WINDOW


@pytest.mark.parametrize("family", ALL)
def test_next_logits_after_every_round(family: str) -> None:
    script = [EVERY_MISTAKE[n] for n in (1, 4, 5, 0, 7, 9, 13, 18, 2, 16)]
    check_rounds(model(family), ids(60), tiny.WINDOW - 2, script)


@pytest.mark.parametrize("family", ALL)
def test_the_second_rewind_in_a_row(family: str) -> None:
    """A snapshot that the first rewind shifted, or left out, shows in the second."""
    accepted = (0, 0, 2, 0, 3, 0, 3, 3, 0, 1, 0)
    script = [(3, None if n == 3 else n) for n in accepted]
    check_rounds(model(family), ids(60), 12, script, probe=family in FAMILIES)
    if family in FAMILIES:
        check_rounds(model(family), ids(60), 1, script, probe=False)


@pytest.mark.parametrize("family", [*HYBRIDS, "qwen3_5_moe", "lfm2"])
def test_recurrent_layers_behind_attention(family: str) -> None:
    """Replaying a recurrent layer over rows of its own lets attention see other rows."""
    driven = model(family)
    if family.startswith("qwen3_5"):
        driven = adapted(tiny.hybrid(num_hidden_layers=8), tiny.recurrence(family))
    check_rounds(driven, ids(60), 6, [(3, n % 3) for n in range(12)])


@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_without_drafts_follow_accepted_ones(family: str) -> None:
    script = [(4, None), (0, None), (0, None), (4, 3), (0, None), (7, 0), (0, None)]
    check_rounds(model(family), ids(60), 9, script)


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
    assert check_rounds(driven, ids(520), 9, [(4, 0)] * 500, probe=False) == 508


@pytest.mark.soak
@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("prompt", [*PROMPTS, 63, 64, 65, 130, 200])
def test_next_logits_for_every_prompt(family: str, prompt: int) -> None:
    check_rounds(model(family), ids(300), prompt, EVERY_MISTAKE)


@pytest.mark.parametrize("family", ALL)
def test_caches_after_rounds_are_those_of_a_cold_prefill(family: str) -> None:
    text, newest = ids(40), ids(40)[30]
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
    found, expected = (feed(model(family), c, [newest]) for c in (caches, fresh))
    assert_equal(found, expected, "next logits")
