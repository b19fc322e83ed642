"""A draft model of any family: its drafts depend on the text alone, whatever was rejected."""

from __future__ import annotations

from itertools import product
from typing import Final

import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed
from speculate.proposers import _chain
from speculate.protocols import Round
from speculate.testing import ScheduledStrategy
from tests.support import reference, tiny
from tests.support.expected_drafts import check_draft_model
from tests.support.recording import GuidedModel, WatchedModel, WatchedProposer, wrong_after

DRAFTS: Final = ("small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
TARGETS: Final = (*reference.PROMISED, "lfm2")


@pytest.mark.parametrize("case", reference.sampled(product(TARGETS, DRAFTS, (1, 3, 6)), 10))
def test_each_draft_for_each_target(case: tuple[str, str, int]) -> None:
    name, draft, depth = case
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 24)]
    wrong = {8, 9, 12, 18, 23}
    proposer = DraftModel(GuidedModel(reference.get(draft).model, text, wrong))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, depth))
    tokens = list(decoder.generate(reference.PROMPT, 24, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, text)
    assert 0 < decoder.stats.accepted_tokens < decoder.stats.draft_tokens


PLANS: Final = ((3,), (4, 0, 1, 0, 0, 2))


@pytest.mark.parametrize("case", reference.sampled(product((*DRAFTS, "qwen3_next"), PLANS), 6))
def test_drafts_are_those_of_a_cold_prefill(case: tuple[str, tuple[int, ...]]) -> None:
    draft, depths = case
    name, prompt = "dense", reference.text_of(7)
    text = [*prompt, *reference.truth(name, prompt, 24)]
    # Nearly always wrong, past two windows: each draft is rolled back.
    watched = WatchedProposer(DraftModel(reference.get(draft).model))
    strategy = ScheduledStrategy([(watched, k) for k in depths])
    tokens = reference.decode(name, strategy, prompt, 24)
    reference.check_tokens(name, prompt, tokens)
    check_draft_model(draft, text, watched)


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2", "qwen3_5_moe"])
def test_a_model_that_drafts_for_itself_is_always_right(name: str) -> None:
    decoder = Decoder(reference.get(name).model, Fixed(DraftModel(reference.get(name).model), 3))
    tokens = list(decoder.generate(reference.PROMPT, 24))
    reference.check_tokens(name, reference.PROMPT, tokens)
    assert decoder.stats.accepted_per_position == decoder.stats.total.drafted_per_position
    assert decoder.stats.mean_acceptance_length == 4.0


@pytest.mark.parametrize("flush", [2, 256])
@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
def test_a_proposer_that_paused_is_right_again_at_once(
    name: str, flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twenty rounds without drafts: more than wait, and more than share a forward.
    monkeypatch.setattr(_chain, "MAX_BACKLOG", flush)
    proposer = DraftModel(reference.get(name).model)
    strategy = ScheduledStrategy([(proposer, k) for k in [3, *[0] * 20, 3]])
    decoder = Decoder(reference.get(name).model, strategy)
    tokens = list(decoder.generate(reference.PROMPT, 30))
    reference.check_tokens(name, reference.PROMPT, tokens)
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens >= 6


def test_a_windowed_draft_keeps_drafting_well_past_its_window() -> None:
    text = [*reference.PROMPT, *reference.truth("windowed_deep", reference.PROMPT, 40)]
    # The same weights with a window of 8: right as often as a cold prefill of it is.
    watched = WatchedProposer(DraftModel(reference.get("gpt_oss").model))
    tokens = reference.decode("windowed_deep", Fixed(watched, 3), count=40)
    reference.check_tokens("windowed_deep", reference.PROMPT, tokens)
    check_draft_model("gpt_oss", text, watched)


# Its cache.


CACHES: Final = product(("small_dense", "qwen3_5", "gpt_oss"), range(5))


@pytest.mark.parametrize("case", reference.sampled(CACHES, 9))
def test_its_cache_follows_what_was_accepted(case: tuple[str, int]) -> None:
    draft, accepted = case
    depth, start = 4, len(reference.PROMPT)
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 20)]
    wrong = wrong_after([accepted] * 20, start, depth)
    small = WatchedModel(reference.get(draft).model, place="draft")
    lengths: list[tuple[int, int]] = []
    length = start - 1

    def note(round: Round) -> None:
        nonlocal length
        length += round.emitted
        if not round.truncated and round.drafted == depth:
            assert round.accepted == accepted
            (found,) = small.lengths()
            lengths.append((found, length))

    proposer = DraftModel(GuidedModel(small, text, wrong))
    decoder = Decoder(reference.get("dense").model, Fixed(proposer, depth), observer=note)
    list(decoder.generate(reference.PROMPT, 20))
    # The last of a draft is never fed to it before it is accepted.
    missing = 1 if accepted == depth else 0
    assert len(lengths) >= 2
    assert {committed - found for found, committed in lengths} == {missing}


@pytest.mark.parametrize("draft", ["small_dense", "qwen3_5"])
def test_a_fresh_decoder_on_an_old_cache_drafts_late_and_exactly(draft: str) -> None:
    caches = reference.stock_caches("dense")
    reference.feed("dense", caches, reference.PROMPT)
    text = [*reference.PROMPT, *reference.SECOND]
    script = [*text, *reference.truth("dense", text, 8)]
    small = WatchedModel(reference.get(draft).model, place="draft")
    proposer = DraftModel(GuidedModel(small, script))
    decoder = Decoder(reference.get("dense").model, Fixed(proposer, 3))
    tokens = list(decoder.generate(reference.SECOND, 8, caches))
    reference.check_tokens("dense", text, tokens)
    assert proposer.position() == len(text) + 8
    # It has seen the new tokens only, at their true positions.
    assert sum(small.widths) <= len(reference.SECOND) + 8 + 3
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens


def test_ids_that_only_the_drafts_padding_has_are_never_drafted() -> None:
    padded = reference.adapted(tiny.dense(seed=9, vocab_size=80, tie_word_embeddings=False))
    table = padded.stock.lm_head.weight  # type: ignore[attr-defined]
    table[70:] = table[70:] * 100
    mx.eval(table)
    watched = WatchedProposer(DraftModel(padded.model))
    tokens = reference.decode("dense", Fixed(watched, 4), count=16)
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert max(id_ for _, _, ids in watched.drafts for id_ in ids) < tiny.VOCAB


def test_who_is_not_asked_takes_nothing_in_and_catches_up_in_one_go() -> None:
    draft = WatchedModel(reference.get("qwen3_5").model)
    watched = WatchedProposer(DraftModel(draft))
    strategy = ScheduledStrategy([(watched, k) for k in [*[0] * 15, 2]])
    prompt = reference.text_of(9)
    tokens = []
    for token in Decoder(reference.get("dense").model, strategy).generate(prompt, 18):
        tokens.append(token)
        assert bool(draft.widths) == (len(tokens) > 15)
    assert draft.widths[0] > _chain.MAX_SHARED_BACKLOG
    check_draft_model("qwen3_5", [*prompt, *reference.ids_of(tokens)], watched)
