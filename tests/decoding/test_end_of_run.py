"""Where a text ends: at its budget or at a stop token, and the cache with it."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, Fixed, Off
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.recording import WatchedModel, WatchedProposer

BUDGETS = product((*reference.PROMISED, "lfm2"), range(1, 13), range(6), (None, 0, 1, "each"))


@pytest.mark.parametrize("case", reference.sampled(BUDGETS, 24))
def test_the_cache_ends_with_prompt_and_emitted_tokens(case: tuple[str, int, int, object]) -> None:
    name, count, depth, wrong = case
    proposer = reference.scripted(name, reference.PROMPT, 20, reference.always(wrong))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, depth))
    tokens = list(decoder.generate(reference.PROMPT, count, caches))
    reference.check_tokens(name, reference.PROMPT, tokens)
    assert [t.finish_reason for t in tokens] == [None] * (count - 1) + ["length"]
    text = [*reference.PROMPT, *reference.ids_of(tokens)]
    reference.check_holds(name, caches, text)
    assert decoder.pending is None
    assert decoder.stats.emitted_tokens == count
    # The next turn is as good as a cold run, too.
    second = list(decoder.generate(reference.SECOND, 3, caches))
    reference.check_tokens(name, [*text, *reference.SECOND], second)


@pytest.mark.parametrize("name", reference.PROMISED)
@pytest.mark.parametrize("depth", [0, 3])
def test_an_answer_of_one_token_and_a_prompt_of_one_token(name: str, depth: int) -> None:
    prompt = (17,)
    proposer = reference.scripted(name, prompt, 4, reference.always(None))
    for count in (1, 2):
        caches = reference.stock_caches(name)
        tokens = reference.decode(name, Fixed(proposer, depth), prompt, count, caches)
        reference.check_tokens(name, prompt, tokens)
        reference.check_holds(name, caches, [*prompt, *reference.ids_of(tokens)])


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
@pytest.mark.parametrize("depth", [0, 3])
def test_no_budget_takes_in_the_prompt_only(name: str, depth: int) -> None:
    proposer = reference.scripted(name, reference.PROMPT, 4, reference.always(None))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, depth))
    assert list(decoder.generate(reference.PROMPT, 0, caches)) == []
    reference.check_holds(name, caches, reference.PROMPT)
    second = list(decoder.generate(reference.SECOND, 4, caches))
    reference.check_tokens(name, [*reference.PROMPT, *reference.SECOND], second)


@pytest.mark.parametrize("name", ["qwen3_5", "dense"])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_without_a_limit_the_text_goes_on_until_it_is_closed(name: str, depth: int) -> None:
    proposer = reference.scripted(name, reference.PROMPT, 20, reference.always("each"))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, depth))
    running = decoder.generate(reference.PROMPT, -1, caches)
    tokens = [next(running) for _ in range(11)]
    running.close()
    assert {t.finish_reason for t in tokens} == {None}
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


# A stop token.


@pytest.mark.parametrize(
    "case", reference.sampled(product((*reference.PROMISED, "lfm2"), range(10)), 12)
)
def test_nothing_comes_after_a_stop_token_anywhere_in_a_block(case: tuple[str, int]) -> None:
    name, index = case
    prompt = reference.distinct(name, 10)
    text = reference.truth(name, prompt, 14)
    stop = text[index]
    watched = WatchedProposer(reference.scripted(name, prompt, 14, reference.always(None)))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(watched, 4))
    tokens = list(decoder.generate(prompt, 14, caches, (stop,)))
    assert reference.ids_of(tokens) == text[: index + 1]
    assert [t.finish_reason for t in tokens] == [None] * index + ["stop"]
    reference.check_tokens(name, prompt, tokens)
    reference.check_holds(name, caches, [*prompt, *text[: index + 1]])
    assert sum(commit[0] for commit in watched.commits) == len(prompt) + index + 1
    stats = decoder.stats
    assert stats.emitted_tokens == index + 1
    assert stats.accepted_tokens == sum(t.from_draft for t in tokens)
    second = list(decoder.generate(reference.SECOND, 3, caches))
    reference.check_tokens(name, [*prompt, *text[: index + 1], *reference.SECOND], second)


@pytest.mark.parametrize("budget", [2, 3, 4, 5])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_a_stop_token_within_the_budget_is_the_reason(budget: int, depth: int) -> None:
    prompt = reference.distinct("dense", 10)
    text = reference.truth("dense", prompt, 10)
    proposer = reference.scripted("dense", prompt, 10, reference.always(None))
    tokens = reference.decode("dense", Fixed(proposer, depth), prompt, budget, stop=(text[3],))
    assert tokens[-1].finish_reason == ("stop" if budget >= 4 else "length")
    assert len(tokens) == min(budget, 4)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_first_of_several_stop_tokens_ends_the_text(depth: int) -> None:
    prompt = reference.distinct("dense", 10)
    text = reference.truth("dense", prompt, 10)
    model = reference.adapted(reference.get("dense").module, eos=(text[5], text[4]))
    proposer = reference.scripted("dense", prompt, 10, reference.always(None))
    decoder = Decoder(model.model, Fixed(proposer, depth))
    assert reference.ids_of(decoder.generate(prompt, 10)) == text[:5]
    # Given ones come besides the model's own.
    assert reference.ids_of(decoder.generate(prompt, 10, None, {text[2], text[9]})) == text[:3]
    unknown = next(id_ for id_ in range(64) if id_ not in text)
    assert reference.ids_of(decoder.generate(prompt, 10, None, [unknown])) == text[:5]


def test_a_stop_token_that_was_drafted_wrongly_does_not_stop() -> None:
    prompt = reference.distinct("dense", 10)
    text = reference.truth("dense", prompt, 10)
    index = next(i for i in range(3) if (text[i] + 1) % 64 not in text[:8])
    proposer = reference.scripted("dense", prompt, 10, reference.always(index))
    wrong = (text[index] + 1) % 64
    tokens = reference.decode("dense", Fixed(proposer, 3), prompt, 8, stop=(wrong,))
    assert reference.ids_of(tokens) == text[:8]


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("depth", [0, 3])
def test_the_target_is_fed_no_more_than_it_must_be(count: int, depth: int) -> None:
    model = WatchedModel(reference.get("dense").model)
    proposer = reference.scripted("dense", reference.PROMPT, count, reference.always(None))
    decoder = Decoder(model, Fixed(proposer, depth))
    list(decoder.generate(reference.PROMPT, count))
    # All drafts are right, so that every token is fed once.
    assert sum(model.widths) == len(reference.PROMPT) + count
    assert max(model.widths[1:]) <= depth + 1


def test_the_last_token_is_fed_alone_and_once() -> None:
    model = WatchedModel(reference.get("qwen3_5").model)
    list(Decoder(model, Off()).generate(reference.PROMPT, 5))
    assert model.widths == [len(reference.PROMPT) - 1, 1, 1, 1, 1, 1, 1]


def test_a_budget_shortens_the_last_drafts() -> None:
    model = WatchedModel(reference.get("dense").model)
    proposer = WatchedProposer(
        reference.scripted("dense", reference.PROMPT, 20, reference.always(None))
    )
    decoder = Decoder(model, ScheduledStrategy([(proposer, 4)]))
    list(decoder.generate(reference.PROMPT, 8))
    assert [len(draft) for _, _, draft in proposer.drafts] == [4, 2]
    assert decoder.stats.draft_tokens == decoder.stats.accepted_tokens == 6
