"""Settled or closed after any token: the caches hold the text, and it can go on."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, Fixed, Off
from speculate.errors import CacheOnLoanError
from speculate.testing import ScheduledStrategy
from tests.support import reference as kit
from tests.support.recording import WatchedProposer

COUNT = 10
PATTERNS = (None, 0, 1, "each")
DEPTHS = ((0,), (4,), (0, 3), (3, 0, 0))


def strategy(name: str, wrong: object, depths: tuple[int, ...], count: int) -> ScheduledStrategy:
    proposer = kit.scripted(name, kit.PROMPT, count, kit.always(wrong))
    return ScheduledStrategy([(proposer, depth) for depth in depths])


CASES = list(product((*kit.PROMISED, "lfm2"), range(COUNT), PATTERNS, DEPTHS))


@pytest.mark.parametrize("case", kit.sampled(CASES, 14))
def test_closed_after_any_token(case: tuple[str, int, object, tuple[int, ...]]) -> None:
    name, emitted, wrong, depths = case
    caches = kit.stock_caches(name)
    decoder = Decoder(kit.get(name).model, strategy(name, wrong, depths, COUNT))
    running = decoder.generate(kit.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted)]
    running.close()
    # A generator that never started has taken nothing in.
    text = [*kit.PROMPT, *kit.ids_of(tokens)] if emitted else []
    kit.check_tokens(name, kit.PROMPT, tokens)
    kit.check_holds(name, caches, text)
    assert decoder.pending is None
    assert decoder.stats.emitted_tokens == emitted
    assert decoder.stats.accepted_tokens == sum(token.from_draft for token in tokens)
    second = list(decoder.generate(kit.SECOND, 2, caches))
    kit.check_tokens(name, [*text, *kit.SECOND], second)


@pytest.mark.parametrize("case", kit.sampled(CASES, 14, seed=1))
def test_settled_after_any_token_the_text_goes_on(
    case: tuple[str, int, object, tuple[int, ...]],
) -> None:
    name, emitted, wrong, depths = case
    caches = kit.stock_caches(name)
    objects = list(caches)
    decoder = Decoder(kit.get(name).model, strategy(name, wrong, depths, COUNT))
    running = decoder.generate(kit.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted + 1)]
    decoder.settle()
    kit.check_holds(name, caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    assert all(a is b for a, b in zip(caches, objects, strict=True))
    assert decoder.pending is None
    decoder.settle()
    tokens += running
    kit.check_tokens(name, kit.PROMPT, tokens)
    kit.check_holds(name, caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    assert decoder.stats.emitted_tokens == COUNT


@pytest.mark.parametrize("name", [*kit.PROMISED, "lfm2"])
@pytest.mark.parametrize("depths", [(0,), (3,)])
def test_settled_after_every_token(name: str, depths: tuple[int, ...]) -> None:
    caches = kit.stock_caches(name)
    decoder = Decoder(kit.get(name).model, strategy(name, None, depths, 7))
    tokens = []
    for token in decoder.generate(kit.PROMPT, 7, caches):
        tokens.append(token)
        decoder.settle()
        kit.check_holds(name, caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    kit.check_tokens(name, kit.PROMPT, tokens)
    kit.check_holds(name, caches, [*kit.PROMPT, *kit.ids_of(tokens)])


@pytest.mark.parametrize("emitted", [1, 2, 3, 4])
@pytest.mark.parametrize("depths", [(0,), (4,)])
def test_settled_and_then_closed(emitted: int, depths: tuple[int, ...]) -> None:
    caches = kit.stock_caches("qwen3_5")
    decoder = Decoder(kit.get("qwen3_5").model, strategy("qwen3_5", None, depths, COUNT))
    running = decoder.generate(kit.PROMPT, COUNT, caches)
    tokens = [next(running) for _ in range(emitted)]
    decoder.settle()
    running.close()
    kit.check_holds("qwen3_5", caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    # What was verified but never came out is no token of the text.
    assert decoder.stats.emitted_tokens == emitted
    assert decoder.stats.accepted_tokens == sum(token.from_draft for token in tokens)


def test_verified_tokens_are_not_drawn_again_after_settling() -> None:
    watched = WatchedProposer(kit.scripted("dense", kit.PROMPT, 10, kit.always(None)))
    decoder = Decoder(kit.get("dense").model, Fixed(watched, 4))
    running = decoder.generate(kit.PROMPT, 10)
    tokens = [next(running) for _ in range(2)]
    decoder.settle()
    tokens += [next(running) for _ in range(3)]
    assert len(watched.drafts) == 1
    assert [t.from_draft for t in tokens] == [True] * 4 + [False]
    tokens += running
    kit.check_tokens("dense", kit.PROMPT, tokens)


def test_settling_outside_a_run_does_nothing() -> None:
    decoder = Decoder(kit.get("dense").model, Off())
    decoder.settle()
    caches = kit.stock_caches("dense")
    tokens = list(decoder.generate(kit.PROMPT, 3, caches))
    decoder.settle()
    kit.check_holds("dense", caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    running = decoder.generate(kit.PROMPT, 3)
    decoder.settle()
    assert len(list(running)) == 3


@pytest.mark.parametrize("name", ["dense", "gpt_oss"])
def test_a_cache_that_changed_while_settled_is_noticed(name: str) -> None:
    caches = kit.stock_caches(name)
    decoder = Decoder(kit.get(name).model, strategy(name, None, (2,), COUNT))
    running = decoder.generate(kit.PROMPT, COUNT, caches)
    next(running)
    decoder.settle()
    kit.feed(name, caches, [3])
    with pytest.raises(CacheOnLoanError, match="held 7 tokens"):
        next(running)
    # It is the caller's again, with what the caller put there, and the decoder is free.
    text = [*kit.PROMPT, *kit.truth(name, kit.PROMPT, 1), 3]
    kit.check_holds(name, caches, text)
    second = list(decoder.generate(kit.SECOND, 3, caches))
    kit.check_tokens(name, [*text, *kit.SECOND], second)
