"""Settled or closed after any token: the caches hold the text, and it can go on."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, Fixed, Off
from speculate.errors import CacheOnLoanError
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.recording import WatchedProposer

COUNT = 10
PATTERNS = (None, 0, 1, "each")
DEPTHS = ((0,), (4,), (0, 3), (3, 0, 0))


def strategy(name: str, wrong: object, depths: tuple[int, ...], count: int) -> ScheduledStrategy:
    proposer = reference.scripted(name, reference.PROMPT, count, reference.always(wrong))
    return ScheduledStrategy([(proposer, depth) for depth in depths])


CASES = list(product((*reference.PROMISED, "lfm2"), range(COUNT), PATTERNS, DEPTHS))


@pytest.mark.parametrize("case", reference.sampled(CASES, 14))
def test_closed_after_any_token(case: tuple[str, int, object, tuple[int, ...]]) -> None:
    name, emitted, wrong, depths = case
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, strategy(name, wrong, depths, COUNT))
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted)]
    running.close()
    # A generator that never started has taken nothing in.
    text = [*reference.PROMPT, *reference.ids_of(tokens)] if emitted else []
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, text)
    assert decoder.pending is None
    assert decoder.stats.emitted_tokens == emitted
    assert decoder.stats.accepted_tokens == sum(token.from_draft for token in tokens)
    second = list(decoder.generate(reference.SECOND, 2, caches))
    reference.check_tokens(name, [*text, *reference.SECOND], second)


@pytest.mark.parametrize("case", reference.sampled(CASES, 14, seed=1))
def test_settled_after_any_token_the_text_goes_on(
    case: tuple[str, int, object, tuple[int, ...]],
) -> None:
    name, emitted, wrong, depths = case
    caches = reference.stock_caches(name)
    objects = list(caches)
    decoder = Decoder(reference.get(name).model, strategy(name, wrong, depths, COUNT))
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted + 1)]
    decoder.settle()
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    assert all(a is b for a, b in zip(caches, objects, strict=True))
    assert decoder.pending is None
    decoder.settle()
    tokens += running
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    assert decoder.stats.emitted_tokens == COUNT


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
@pytest.mark.parametrize("depths", [(0,), (3,)])
def test_settled_after_every_token(name: str, depths: tuple[int, ...]) -> None:
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, strategy(name, None, depths, 7))
    tokens = []
    for token in decoder.generate(reference.PROMPT, 7, caches):
        tokens.append(token)
        decoder.settle()
        reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("emitted", [1, 2, 3, 4])
@pytest.mark.parametrize("depths", [(0,), (4,)])
def test_settled_and_then_closed(emitted: int, depths: tuple[int, ...]) -> None:
    caches = reference.stock_caches("qwen3_5")
    decoder = Decoder(reference.get("qwen3_5").model, strategy("qwen3_5", None, depths, COUNT))
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted)]
    decoder.settle()
    running.close()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    # What was verified but never came out is no token of the text.
    assert decoder.stats.emitted_tokens == emitted
    assert decoder.stats.accepted_tokens == sum(token.from_draft for token in tokens)


def test_verified_tokens_are_not_drawn_again_after_settling() -> None:
    watched = WatchedProposer(
        reference.scripted("dense", reference.PROMPT, 10, reference.always(None))
    )
    decoder = Decoder(reference.get("dense").model, Fixed(watched, 4))
    running = decoder.generate(reference.PROMPT, 10)
    tokens = [next(running) for _ in range(2)]
    decoder.settle()
    tokens += [next(running) for _ in range(3)]
    assert len(watched.drafts) == 1
    assert [t.from_draft for t in tokens] == [True] * 4 + [False]
    tokens += running
    reference.check_tokens("dense", reference.PROMPT, tokens)


def test_settling_outside_a_run_does_nothing() -> None:
    decoder = Decoder(reference.get("dense").model, Off())
    decoder.settle()
    caches = reference.stock_caches("dense")
    tokens = list(decoder.generate(reference.PROMPT, 3, caches))
    decoder.settle()
    reference.check_holds("dense", caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    running = decoder.generate(reference.PROMPT, 3)
    decoder.settle()
    assert len(list(running)) == 3


@pytest.mark.parametrize("name", ["dense", "gpt_oss"])
def test_a_cache_that_changed_while_settled_is_noticed(name: str) -> None:
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, strategy(name, None, (2,), COUNT))
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    next(running)
    decoder.settle()
    reference.feed(name, caches, [3])
    with pytest.raises(CacheOnLoanError, match="held 7 tokens"):
        next(running)
    # It is the caller's again, with what the caller put there, and the decoder is free.
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 1), 3]
    reference.check_holds(name, caches, text)
    second = list(decoder.generate(reference.SECOND, 3, caches))
    reference.check_tokens(name, [*text, *reference.SECOND], second)
