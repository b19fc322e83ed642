"""Prompt lookup in whole runs: exact for every family, and in step with the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import mlx.core as mx
import pytest

import speculate as sp
from speculate import DraftModel, MTPChain
from speculate.protocols import Proposer
from speculate.testing import ScheduledStrategy
from tests.support import reference, tiny
from tests.support.brute_force_lookup import Scan, check_lookup
from tests.support.mtp_heads import with_head
from tests.support.recording import WatchedProposer

NAMES: Final = (*reference.PROMISED, *tiny.MORE)
OFTEN: Final = Scan(longest=3, shortest=1)
"""Finds something nearly always. A random model's text repeats little."""


def eager() -> sp.PromptLookup:
    return sp.PromptLookup(max_ngram=OFTEN.longest, min_ngram=OFTEN.shortest)


def echo(name: str, count: int = 24) -> tuple[int, ...]:
    """A prompt that a model has begun to go on from already: some copies are right."""
    return (
        *reference.PROMPT,
        *reference.truth(name, reference.PROMPT, count)[:-4],
        *reference.PROMPT,
    )


@pytest.mark.parametrize("case", reference.sampled(product(NAMES, (1, 3, 8), (False, True)), 14))
def test_the_text_is_plain_decodings(case: tuple[str, int, bool]) -> None:
    name, depth, repeated = case
    prompt = echo(name) if repeated else reference.PROMPT
    text = [*prompt, *reference.truth(name, prompt, 30)]
    watched = WatchedProposer(eager())
    caches = reference.stock_caches(name)
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(watched, depth))
    tokens = list(decoder.generate(prompt, 30, caches))
    reference.check_tokens(name, prompt, tokens)
    reference.check_holds(name, caches, text)
    check_lookup(OFTEN, text, watched, range(1, depth + 1))
    assert watched.position() == len(text)


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_some_drafts_are_right_and_some_are_wrong(name: str) -> None:
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(eager(), 4))
    list(decoder.generate(echo(name), 40))
    assert 0 < decoder.stats.accepted_tokens < decoder.stats.draft_tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", ["coupled", "rejection", "block"])
def test_it_drafts_in_every_mode(mode: str, temperature: float) -> None:
    sampling = sp.Sampling(temperature=temperature, seed=3, mode=mode)  # type: ignore[arg-type]
    texts = []
    for strategy in (sp.Off(), sp.Fixed(eager(), 4)):
        decoder = sp.Decoder(reference.get("dense").model, strategy, sampling)
        texts.append(reference.ids_of(decoder.generate(echo("dense"), 40)))
    assert decoder.stats.draft_tokens > 0
    assert len(texts[1]) == 40
    assert mode != "coupled" or texts[0] == texts[1]


@pytest.mark.parametrize("plan", ["l3 d2 - - l4 - m2", "- - - - l2", "d3 m3 l1 d1 l8", "l2 -"])
def test_what_it_drafts_does_not_depend_on_who_drafted_before(plan: str) -> None:
    name = "qwen3_5"
    model, prompt = with_head(name).model, echo(name)
    text = [*prompt, *reference.truth(name, prompt, 26)]
    watched = WatchedProposer(eager())
    who: dict[str, Proposer] = {
        "l": watched,
        "d": DraftModel(reference.get("small_dense").model),
        "m": MTPChain(),
        "-": watched,
    }
    steps = [(who[step[0]], int(step[1:] or 0)) for step in plan.split()]
    tokens = list(sp.Decoder(model, ScheduledStrategy(steps)).generate(prompt, 26))
    reference.check_tokens(name, prompt, tokens)
    check_lookup(OFTEN, text, watched, range(1, 9))
    assert watched.position() == len(text)


def test_it_abstains_for_200_rounds_and_then_drafts() -> None:
    # No two tokens follow each other twice, until the text quotes itself.
    pairs = [token for step in (1, 3, 5, 7) for token in range(0, 64 * step, step)]
    new = [token % 64 for token in pairs]
    text = [*new, *new[10:50]]
    watched = WatchedProposer(sp.PromptLookup())

    def dictate(before: mx.array, logits: mx.array) -> mx.array:
        return mx.where(mx.arange(tiny.VOCAB) == text[before.shape[0]], 1e6, logits)

    caches = reference.stock_caches("qwen3_5")
    decoder = sp.Decoder(reference.get("qwen3_5").model, sp.Fixed(watched, 4), None, [dictate])
    assert reference.ids_of(decoder.generate(text[:6], len(text) - 6, caches)) == text[6:]
    reference.check_holds("qwen3_5", caches, text)
    check_lookup(Scan(), text, watched, range(1, 5))
    drafted = [bool(ids) for _, _, ids in watched.drafts]
    assert sum(drafted) >= 6
    assert True not in drafted[:200]
    assert decoder.stats.accepted_tokens >= 30


# Turns, pauses, chunks.


def turn(decoder: sp.Decoder, prompt: Sequence[int], caches: list[object]) -> list[int]:
    return reference.ids_of(decoder.generate(prompt, 12, caches))


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
def test_a_later_turn_finds_what_an_earlier_one_said(name: str) -> None:
    watched, caches = WatchedProposer(eager()), reference.stock_caches(name)
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(watched, 3))
    text: list[int] = []
    for prompt in (reference.PROMPT, reference.SECOND, reference.PROMPT[:1], reference.THIRD):
        text += prompt
        said = turn(decoder, prompt, caches)
        assert said == reference.truth(name, text, 12)
        text += said
        reference.check_holds(name, caches, text)
    assert watched.begins == [0]
    assert watched.position() == len(text)
    check_lookup(OFTEN, text, watched, (1, 2, 3))


@pytest.mark.parametrize("history", [(), (1, 2, 3, 4)])
def test_a_fresh_decoder_on_an_old_cache_knows_the_new_tokens_alone(
    history: tuple[int, ...],
) -> None:
    name, caches = "qwen3_5", reference.stock_caches("qwen3_5")
    reference.feed(name, caches, reference.PROMPT)
    watched = WatchedProposer(eager())
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(watched, 3))
    tokens = list(decoder.generate(reference.SECOND, 20, caches, history=history))
    text = [*reference.PROMPT, *reference.SECOND, *reference.ids_of(tokens)]
    reference.check_tokens(name, [*reference.PROMPT, *reference.SECOND], tokens)
    start = watched.begins[0]
    assert watched.position() - start == len(reference.SECOND) + 20
    check_lookup(OFTEN, text[len(reference.PROMPT) - start :], watched, (1, 2, 3), start)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_run_that_is_settled_drafts_as_one_that_is_not(every: int) -> None:
    name, prompt = "qwen3_5", echo("qwen3_5")
    text = [*prompt, *reference.truth(name, prompt, 20)]
    watched, caches = WatchedProposer(eager()), reference.stock_caches(name)
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(watched, 3))
    for index, _ in enumerate(decoder.generate(prompt, 20, caches)):
        if index % every == 0:
            decoder.settle()
            reference.check_holds(name, caches, text[: len(prompt) + index + 1])
            assert watched.position() == len(prompt) + index + 1
    assert watched.position() == len(text)
    check_lookup(OFTEN, text, watched, (1, 2, 3))


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_the_prompt_may_come_in_chunks(chunk: int) -> None:
    name, prompt = "dense", echo("dense")
    text = [*prompt, *reference.truth(name, prompt, 16)]
    watched = WatchedProposer(eager())
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(watched, 4), prefill_step_size=chunk)
    reference.check_tokens(name, prompt, list(decoder.generate(prompt, 16)))
    check_lookup(OFTEN, text, watched, range(1, 5))
