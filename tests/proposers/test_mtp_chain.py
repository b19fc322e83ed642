"""The chain over a head: any depth, exact, and a function of the text alone."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from speculate import Decoder, Fixed, MTPChain
from speculate.proposers import _chain
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.expected_drafts import check_head
from tests.support.mtp_heads import with_head, with_knowing_head
from tests.support.recording import WatchedProposer

WITH_HEADS: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


@pytest.mark.parametrize("case", reference.sampled(product(WITH_HEADS, range(1, 6)), 5))
def test_a_real_head_never_changes_the_text(case: tuple[str, int]) -> None:
    name, depth = case
    tiny = with_head(name)
    watched = WatchedProposer(MTPChain())
    caches = reference.stock_caches(name)
    tokens = list(Decoder(tiny.model, Fixed(watched, depth)).generate(reference.PROMPT, 14, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    text = [*reference.PROMPT, *reference.ids_of(tokens)]
    reference.check_holds(name, caches, text)
    check_head(tiny, text, watched)


@pytest.mark.parametrize("depths", [(2, 0, 0, 3), (1, 4, 0)], ids=str)
@pytest.mark.parametrize("flush", [2, 256])
def test_drafts_after_a_pause_are_those_of_a_head_that_took_in_everything(
    depths: tuple[int, ...], flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chain, "MAX_BACKLOG", flush)
    tiny = with_head("qwen3_5")
    watched = WatchedProposer(MTPChain())
    strategy = ScheduledStrategy([(watched, k) for k in depths])
    decoder = Decoder(tiny.model, strategy, prefill_step_size=4)
    prompt = reference.text_of(11)
    tokens = list(decoder.generate(prompt, 14))
    reference.check_tokens("qwen3_5", prompt, tokens)
    check_head(tiny, [*prompt, *reference.ids_of(tokens)], watched)


@pytest.mark.parametrize("case", reference.sampled(product(reference.PROMISED, range(1, 6)), 8))
def test_a_head_that_is_right_is_accepted_at_every_depth(case: tuple[str, int]) -> None:
    name, depth = case
    tiny, _ = with_knowing_head(
        name, [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 20)]
    )
    decoder = Decoder(tiny.model, Fixed(MTPChain(), depth))
    tokens = list(decoder.generate(reference.PROMPT, 2 * (depth + 1)))
    reference.check_tokens(name, reference.PROMPT, tokens)
    assert decoder.stats.rounds == 2
    assert decoder.stats.accepted_tokens == 2 * depth


def test_a_prompt_of_one_token_has_nothing_to_draft_from_at_first() -> None:
    tiny = with_head("qwen3_5")
    watched = WatchedProposer(MTPChain())
    tokens = list(Decoder(tiny.model, Fixed(watched, 2)).generate([9], 6))
    reference.check_tokens("qwen3_5", [9], tokens)
    assert watched.drafts[0] == (0, 9, [])
    assert [len(ids) for _, _, ids in watched.drafts[1:2]] == [2]


def test_a_head_is_used_without_being_asked_for() -> None:
    prompt = reference.distinct("qwen3_5", 12)
    tiny, head = with_knowing_head("qwen3_5", [*prompt, *reference.truth("qwen3_5", prompt, 13)])
    # Too short a text to measure anything: the first rounds without a draft show the pace, and
    # then the head is tried, whatever the clock says.
    tokens = list(Decoder(tiny.model).generate(prompt, 12))
    reference.check_tokens("qwen3_5", prompt, tokens)
    assert tokens[0].proposer is None
    assert {t.proposer for t in tokens} == {"mtp", None}
    assert head.rows()
    plain = Decoder(reference.get("qwen3_5").model)
    assert {t.proposer for t in plain.generate(prompt, 12)} == {None}


def test_a_shared_prefix_is_paired_with_the_token_that_follows_it_now() -> None:
    name, tiny = "qwen3_5", with_head("qwen3_5")
    for turn in ([7, 3], [9, 3]):
        caches = reference.stock_caches(name)
        text = [*reference.PROMPT, *turn]
        decoder = Decoder(tiny.model, Fixed(watched := WatchedProposer(MTPChain()), 2))
        list(decoder.generate(reference.PROMPT, 0, caches))
        tokens = list(decoder.generate(turn, 6, caches))
        reference.check_tokens(name, text, tokens)
        check_head(tiny, [*text, *reference.ids_of(tokens)], watched)
