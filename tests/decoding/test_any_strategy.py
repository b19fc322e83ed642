"""Whoever drafts, however much, whatever the clock says and whoever raises: the same text.

Next logits are those of a cold prefill, bit for bit, and so are caches wherever one looks.
"""

from __future__ import annotations

import logging
from itertools import product
from typing import Final

import pytest

from speculate import Adaptive, Decoder, DraftModel, MTPChain, Off, PromptLookup
from speculate.protocols import Proposer
from speculate.testing import RecordingObserver, ScheduledStrategy
from tests.support import reference, tiny
from tests.support.expected_drafts import check_draft_model, check_head
from tests.support.mtp_heads import with_head, with_knowing_head
from tests.support.random_switching import Sessions
from tests.support.recording import Broken, GuidedModel, Ticker, WatchedProposer

FAMILIES: Final = (*tiny.FAMILIES, *tiny.MORE)
FOLDED: Final = list(product(tiny.FOLDED, (0.0, 0.8)))
CASES: Final = list(product(FAMILIES, (0.0, 0.8)))


@pytest.mark.parametrize(
    "case", [*reference.sampled(CASES, len(CASES)), *reference.sampled(FOLDED, 1)]
)
def test_250_rounds_of_random_switching(case: tuple[str, float]) -> None:
    sessions = Sessions(*case, seed=0)
    sessions.run(250)
    assert sessions.accepted > 50


@pytest.mark.parametrize("case", reference.sampled(CASES, 3, seed=1))
@pytest.mark.parametrize("faults", [0.0, 0.01])
def test_adaptive_on_a_wild_clock(
    case: tuple[str, float], faults: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, logger="speculate"):
        Sessions(*case, seed=0, adaptive=True, faults=faults).run(60)


@pytest.mark.soak
@pytest.mark.parametrize("case", [*CASES, *FOLDED], ids=str)
def test_5000_rounds_of_everything(
    case: tuple[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, logger="speculate"):
        Sessions(*case, seed=1).run(1500)
        Sessions(*case, seed=2, faults=0.01).run(1500)
        Sessions(*case, seed=3, adaptive=True).run(1000)
        Sessions(*case, seed=4, adaptive=True, faults=0.01).run(1000)


# What raises is reported once.


@pytest.mark.parametrize("place", ["commit", "propose", "settle"])
@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
def test_a_proposer_that_raises_is_reported_once_and_decoding_goes_on(
    name: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 24)]
    small = GuidedModel(reference.get("small_dense").model, text)
    broken = WatchedProposer(
        DraftModel(small), ticker := Ticker(place, 1 if place != "commit" else 3)
    )
    strategy = Adaptive(broken, PromptLookup(), clock="fixed")
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, strategy)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        tokens = list(decoder.generate(reference.PROMPT, 20, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, text[: len(reference.PROMPT) + 20])
    (record,) = caplog.records
    assert "'draft' raised Broken('told to')" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is ticker.error
    assert ticker.calls[place] == ticker.at
    # Once the next text begins it drafts again, and as well as before.
    again = list(decoder.generate(reference.PROMPT, 20))
    reference.check_tokens(name, reference.PROMPT, again)
    assert sum(token.proposer == "draft" for token in again) > 8
    assert len(caplog.records) == 1


def test_one_that_raises_for_a_strategy_that_needs_it_ends_the_run() -> None:
    broken = WatchedProposer(DraftModel(reference.get("small_dense").model), Ticker("propose", 2))
    decoder = Decoder(reference.get("dense").model, ScheduledStrategy([(broken, 2)]))
    with pytest.raises(Broken):
        list(decoder.generate(reference.PROMPT, 20))


# By default.


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
def test_a_decoder_without_a_strategy_gives_the_same_text(name: str) -> None:
    model = with_head(name).model if name == "qwen3_5" else reference.get(name).model
    caches = reference.stock_caches(name)
    tokens = list(Decoder(model).generate(reference.PROMPT, 70, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


def test_a_fixed_clock_makes_the_same_choices_for_the_same_request() -> None:
    text = [*reference.PROMPT, *reference.truth("qwen3_5", reference.PROMPT, 60)]
    wrong = {place for place in range(len(text)) if place % 5 == 0}
    found = []
    for _ in range(2):
        model, _ = with_knowing_head("qwen3_5", text, wrong)
        observer = RecordingObserver()
        strategy = Adaptive(MTPChain(), PromptLookup(), clock="fixed")
        list(Decoder(model.model, strategy, observer=observer).generate(reference.PROMPT, 60))
        found.append(
            [(r.planned_proposer, r.planned, r.drafted, r.accepted) for r in observer.rounds]
        )
    assert found[0] == found[1]
    assert len({planned for _, planned, _, _ in found[0]}) > 1


# Pauses.


@pytest.mark.parametrize("pause", [1, 200, pytest.param(600, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_after_a_pause_drafts_are_accepted_as_before(name: str, pause: int) -> None:
    count = pause + 42
    plain = reference.ids_of(
        Decoder(reference.get(name).model, Off()).generate(reference.PROMPT, count)
    )
    text = [*reference.PROMPT, *plain]
    model, _ = with_knowing_head(name, text)
    chain = MTPChain()
    small = DraftModel(GuidedModel(reference.get("lfm2").model, text), name="hybrid")
    tiny = DraftModel(GuidedModel(reference.get("gpt_oss").model, text), name="windowed")
    everyone: list[Proposer] = [chain, small, tiny]
    turn = [(one, depth) for one in everyone for depth in (3, 2)]
    plans = [*turn, *[(chain, 0)] * pause, *turn]
    decoder = Decoder(model.model, ScheduledStrategy(plans))
    tokens = list(decoder.generate(reference.PROMPT, count))
    assert reference.ids_of(tokens) == plain
    stats = decoder.stats.by_proposer
    assert {name: one.draft_tokens - one.accepted_tokens for name, one in stats.items()} == {
        "mtp": 0,
        "hybrid": 0,
        "windowed": 0,
    }
    # Everybody drafted on both sides of the pause.
    assert [one.drafts for one in stats.values()] == [4, 4, 4]


@pytest.mark.parametrize("pause", [200, pytest.param(600, marks=pytest.mark.soak)])
def test_after_a_pause_drafts_are_those_of_one_who_took_in_everything(pause: int) -> None:
    model = with_head("qwen3_5")
    chain = WatchedProposer(MTPChain())
    small = WatchedProposer(DraftModel(reference.get("gpt_oss").model))
    turn: list[tuple[Proposer, int]] = [(chain, 3), (small, 3), (chain, 1)]
    decoder = Decoder(model.model, ScheduledStrategy([*turn, *[(chain, 0)] * pause, *turn]))
    tokens = list(decoder.generate(reference.PROMPT, pause + 8))
    text = [*reference.PROMPT, *reference.ids_of(tokens)]
    check_head(model, text, chain)
    check_draft_model("gpt_oss", text, small)
    assert min(len(chain.drafts), len(small.drafts)) >= 2
    assert small.drafts[-1][0] > pause


@pytest.mark.parametrize("name", (*reference.PROMISED, "lfm2"))
@pytest.mark.parametrize("others", [0, 1, 3], ids=["", "another one", "a lookup"])
def test_a_round_without_a_draft_after_a_long_acceptance(name: str, others: int) -> None:
    plain = reference.truth(name, reference.PROMPT, 40)
    text = [*reference.PROMPT, *plain]
    model, _ = with_knowing_head(name, text)
    chain = MTPChain()
    small = DraftModel(GuidedModel(reference.get("qwen3_5").model, text))
    after: list[tuple[Proposer, int]] = [(chain, 6), (small, 2), (small, 0), (PromptLookup(), 3)]
    plans: list[tuple[Proposer, int]] = [(chain, 6), (chain, 0), after[others], (chain, 0)]
    caches = reference.stock_caches(name)
    decoder = Decoder(model.model, ScheduledStrategy([*plans, (small, 6), (small, 0)]))
    tokens = list(decoder.generate(reference.PROMPT, 40, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, text)
    for known in ("mtp", "draft"):
        stats = decoder.stats.by_proposer[known]
        assert stats.draft_tokens == stats.accepted_tokens
