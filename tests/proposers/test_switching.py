"""Several proposers in one run: each is notified of every commit."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from speculate import Decoder, DraftModel, MTPChain
from speculate.protocols import Proposer
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.expected_drafts import check_draft_model, check_head
from tests.support.mtp_heads import with_head, with_knowing_head
from tests.support.recording import WatchedProposer

NAME: Final = "qwen3_5"


DRAFTS: Final = ("small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
PLANS: Final = ("m3 d3 m1 d2", "d2 - - m4 - d1", "m2 m2 - d4 d4 -", "s4 m2 s4 d2 -")


@pytest.mark.parametrize(
    "case", reference.sampled(product((NAME, f"{NAME}_folded"), DRAFTS, PLANS), 9)
)
def test_what_each_drafts_does_not_depend_on_who_drafted_before(case: tuple[str, str, str]) -> None:
    name, draft, plan = case
    model = with_head(name)
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 22)]
    chain = WatchedProposer(MTPChain())
    small = WatchedProposer(DraftModel(reference.get(draft).model))
    script = ScriptedProposer(text, lambda n: (2, None)[n % 2], vocab_size=tiny.VOCAB)
    who: dict[str, Proposer] = {"m": chain, "d": small, "s": script}
    steps = [step if len(step) == 2 else "m0" for step in plan.split()]
    # Proposers that are never asked are notified of everything, too.
    strategy = ScheduledStrategy([*[(who[s[0]], int(s[1])) for s in steps], (chain, 0), (small, 0)])
    caches = reference.stock_caches(name)
    decoder = Decoder(model.model, strategy)
    tokens = list(decoder.generate(reference.PROMPT, 22, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, text)
    check_head(model, text, chain)
    check_draft_model(draft, text, small)
    assert chain.position() == small.position() == len(text)


@pytest.mark.parametrize("pause", [1, 5, 15])
def test_two_perfect_proposers_stay_perfect_with_pauses_between(pause: int) -> None:
    count = 3 * pause + 22
    text = [*reference.PROMPT, *reference.truth(NAME, reference.PROMPT, count)]
    model, _ = with_knowing_head(NAME, text)
    chain, small = MTPChain(), DraftModel(reference.get(NAME).model)
    off: list[tuple[Proposer, int]] = [(chain, 0)] * pause
    plans: list[tuple[Proposer, int]] = [
        (chain, 3),
        *off,
        (small, 3),
        *off,
        (chain, 1),
        (small, 2),
        *off,
    ]
    decoder = Decoder(model.model, ScheduledStrategy(plans))
    tokens = list(decoder.generate(reference.PROMPT, count))
    reference.check_tokens(NAME, reference.PROMPT, tokens)
    stats = decoder.stats
    assert {name: s.draft_tokens - s.accepted_tokens for name, s in stats.by_proposer.items()} == {
        "mtp": 0,
        "draft": 0,
    }
    assert stats.draft_tokens >= 9


def test_a_prompt_longer_than_may_wait_is_taken_in_by_all() -> None:
    model, prompt = with_head(NAME), reference.text_of(300)
    chain, small = (
        WatchedProposer(MTPChain()),
        WatchedProposer(DraftModel(reference.get(NAME).model)),
    )
    decoder = Decoder(model.model, ScheduledStrategy([(chain, 2), (small, 3)]))
    tokens = list(decoder.generate(prompt, 8))
    reference.check_tokens(NAME, prompt, tokens)
    text = [*prompt, *reference.ids_of(tokens)]
    check_head(model, text, chain)
    check_draft_model(NAME, text, small)


def test_every_proposer_is_notified_of_every_verdict() -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)]
    scripts = [
        WatchedProposer(ScriptedProposer(text, lambda _: 1, vocab_size=tiny.VOCAB, name=name))
        for name in ("one", "two")
    ]
    strategy = ScheduledStrategy([(scripts[0], 3), (scripts[1], 2), (scripts[0], 0)])
    tokens = reference.decode("dense", strategy, count=10)
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert scripts[0].commits == scripts[1].commits
    fed, *rounds = scripts[0].commits
    assert fed == (len(reference.PROMPT) - 1, -1, -1)
    assert rounds[:3] == [(2, 3, 1), (2, 2, 1), (1, -1, -1)]
    assert sum(tokens for tokens, _, _ in scripts[0].commits) == len(reference.PROMPT) + 10


def test_several_proposers_each_have_counters_of_their_own() -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)]
    right = ScriptedProposer(text, vocab_size=tiny.VOCAB, name="right")
    wrong = ScriptedProposer(text, lambda _: 0, vocab_size=tiny.VOCAB, name="wrong")
    decoder = Decoder(reference.get("dense").model, ScheduledStrategy([(right, 2), (wrong, 3)]))
    tokens = list(decoder.generate(reference.PROMPT, 8))
    assert [t.proposer for t in tokens] == ["right", "right", None, None] * 2
    by_name = decoder.stats.by_proposer
    assert (by_name["right"].draft_tokens, by_name["right"].accepted_tokens) == (4, 4)
    assert by_name["wrong"].accepted_tokens == 0
    assert by_name["right"].mean_acceptance_length == 3.0
    assert by_name["wrong"].mean_acceptance_length == 1.0
    assert decoder.stats.draft_tokens == sum(s.draft_tokens for s in by_name.values())
