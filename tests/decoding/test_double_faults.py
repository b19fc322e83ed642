"""A failure while another one is being cleaned up, and failures before a text begins."""

from __future__ import annotations

import pytest

from speculate import Decoder, Fixed, Token
from speculate.protocols import Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference as kit
from tests.support import tiny
from tests.support.recording import Broken, Ticker, WatchedModel, WatchedProposer


class Later(Exception):
    """What goes wrong in the clean-up."""


@pytest.mark.parametrize("place", ["settle", "commit", "begin"])
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("depth", [0, 2])
def test_the_first_failure_is_the_one_that_is_seen(place: str, at: int, depth: int) -> None:
    name = "qwen3_5"
    cleaning = Ticker()
    watched = WatchedProposer(kit.scripted(name, kit.PROMPT, 12, kit.always("each")), cleaning)
    error = Broken("the target")
    ticker = Ticker("target", at, error)
    decoder = Decoder(
        WatchedModel(kit.get(name).model, ticker), Fixed(watched, depth), prefill_step_size=3
    )
    caches = kit.stock_caches(name)
    tokens: list[Token] = []

    def fail_from_now_on() -> None:
        cleaning.place, cleaning.at = place, cleaning.calls[place] + 1
        cleaning.error = Later(place)

    ticker.then = fail_from_now_on
    with pytest.raises(Broken) as caught:
        for token in decoder.generate(kit.PROMPT, 12, caches):
            tokens.append(token)
    assert caught.value is error
    text = [*kit.PROMPT, *kit.ids_of(tokens)] if at > 2 else []
    if decoder.pending is not None:
        assert text.pop() == decoder.pending
    kit.check_holds(name, caches, text)
    cleaning.place = ""
    kit.check_tokens(name, kit.PROMPT, list(decoder.generate(kit.PROMPT, 5)))


@pytest.mark.parametrize(("place", "at"), [("attach", 2), ("begin", 1), ("attach", 3)])
def test_a_proposer_that_cannot_begin_takes_nothing_with_it(place: str, at: int) -> None:
    name = "gpt_oss"
    ticker = Ticker(place, at)
    watched = WatchedProposer(kit.scripted(name, kit.PROMPT, 12, kit.always(None)), ticker)
    decoder = Decoder(kit.get(name).model, Fixed(watched, 3))
    caches = kit.stock_caches(name)
    first = kit.ids_of(decoder.generate(kit.PROMPT, 4, caches)) if at == 3 else []
    text = [*kit.PROMPT, *first] if first else []
    turn = kit.SECOND if first else kit.PROMPT
    with pytest.raises(Broken):
        list(decoder.generate(turn, 4, caches))
    kit.check_holds(name, caches, text)
    kit.check_tokens(name, [*text, *turn], list(decoder.generate(turn, 4, caches)))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_proposer_that_fails_to_settle_does_not_keep_others_from_it(failing: int) -> None:
    tickers = [Ticker(), Ticker()]
    tickers[failing].place, tickers[failing].at = "settle", 1
    text = [*kit.PROMPT, *kit.truth("dense", kit.PROMPT, 12)]
    pair = [
        WatchedProposer(ScriptedProposer(text, vocab_size=tiny.VOCAB, name=name), ticker)
        for name, ticker in zip(("one", "two"), tickers, strict=True)
    ]
    decoder = Decoder(kit.get("dense").model, ScheduledStrategy([(pair[0], 2), (pair[1], 1)]))
    caches = kit.stock_caches("dense")
    with pytest.raises(Broken):
        list(decoder.generate(kit.PROMPT, 6, caches))
    assert [ticker.calls["settle"] for ticker in tickers] == [1, 1]
    kit.check_holds("dense", caches, [*kit.PROMPT, *kit.truth("dense", kit.PROMPT, 6)])


def test_an_observer_that_fails_in_close_is_reported_and_loses_nothing() -> None:
    def refuse(round: Round) -> None:
        raise Broken

    script = kit.scripted("qwen3_5", kit.PROMPT, 12, kit.always(None))
    decoder = Decoder(kit.get("qwen3_5").model, Fixed(script, 3), observer=refuse)
    caches = kit.stock_caches("qwen3_5")
    running = decoder.generate(kit.PROMPT, 12, caches)
    tokens = [next(running), next(running)]
    with pytest.raises(Broken):
        running.close()
    kit.check_holds("qwen3_5", caches, [*kit.PROMPT, *kit.ids_of(tokens)])


@pytest.mark.parametrize("place", ["settle", "commit"])
def test_a_failure_in_settle_is_reported_and_the_text_can_be_closed(place: str) -> None:
    ticker = Ticker()
    script = kit.scripted("qwen3_5", kit.PROMPT, 12, kit.always(None))
    watched = WatchedProposer(script, ticker)
    decoder = Decoder(kit.get("qwen3_5").model, Fixed(watched, 3))
    caches = kit.stock_caches("qwen3_5")
    running = decoder.generate(kit.PROMPT, 12, caches)
    tokens = [next(running) for _ in range(2)]
    ticker.place, ticker.at = place, ticker.calls[place] + 1
    with pytest.raises(Broken):
        decoder.settle()
    ticker.place = ""
    running.close()
    kit.check_holds("qwen3_5", caches, [*kit.PROMPT, *kit.ids_of(tokens)])
    kit.check_tokens("qwen3_5", kit.PROMPT, list(decoder.generate(kit.PROMPT, 5)))
