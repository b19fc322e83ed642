"""A failure while another one is being cleaned up, and failures before a text begins."""

from __future__ import annotations

import pytest

from speculate import Decoder, Fixed, Token
from speculate.protocols import Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.recording import Broken, Ticker, WatchedModel, WatchedProposer


class Later(Exception):
    """What goes wrong in the clean-up."""


@pytest.mark.parametrize("place", ["settle", "commit", "begin"])
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("depth", [0, 2])
def test_the_first_failure_is_the_one_that_is_seen(place: str, at: int, depth: int) -> None:
    name = "qwen3_5"
    cleaning = Ticker()
    watched = WatchedProposer(
        reference.scripted(name, reference.PROMPT, 12, reference.always("each")), cleaning
    )
    error = Broken("the target")
    ticker = Ticker("target", at, error)
    decoder = Decoder(
        WatchedModel(reference.get(name).model, ticker), Fixed(watched, depth), prefill_step_size=3
    )
    caches = reference.stock_caches(name)
    tokens: list[Token] = []

    def fail_from_now_on() -> None:
        cleaning.place, cleaning.at = place, cleaning.calls[place] + 1
        cleaning.error = Later(place)

    ticker.then = fail_from_now_on
    with pytest.raises(Broken) as caught:
        for token in decoder.generate(reference.PROMPT, 12, caches):
            tokens.append(token)
    assert caught.value is error
    text = [*reference.PROMPT, *reference.ids_of(tokens)] if at > 2 else []
    if decoder.pending is not None:
        assert text.pop() == decoder.pending
    reference.check_holds(name, caches, text)
    cleaning.place = ""
    reference.check_tokens(name, reference.PROMPT, list(decoder.generate(reference.PROMPT, 5)))


@pytest.mark.parametrize(("place", "at"), [("attach", 2), ("begin", 1), ("attach", 3)])
def test_a_proposer_that_cannot_begin_takes_nothing_with_it(place: str, at: int) -> None:
    name = "gpt_oss"
    ticker = Ticker(place, at)
    watched = WatchedProposer(
        reference.scripted(name, reference.PROMPT, 12, reference.always(None)), ticker
    )
    decoder = Decoder(reference.get(name).model, Fixed(watched, 3))
    caches = reference.stock_caches(name)
    first = reference.ids_of(decoder.generate(reference.PROMPT, 4, caches)) if at == 3 else []
    text = [*reference.PROMPT, *first] if first else []
    turn = reference.SECOND if first else reference.PROMPT
    with pytest.raises(Broken):
        list(decoder.generate(turn, 4, caches))
    reference.check_holds(name, caches, text)
    reference.check_tokens(name, [*text, *turn], list(decoder.generate(turn, 4, caches)))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_proposer_that_fails_to_settle_does_not_keep_others_from_it(failing: int) -> None:
    tickers = [Ticker(), Ticker()]
    tickers[failing].place, tickers[failing].at = "settle", 1
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)]
    pair = [
        WatchedProposer(ScriptedProposer(text, vocab_size=tiny.VOCAB, name=name), ticker)
        for name, ticker in zip(("one", "two"), tickers, strict=True)
    ]
    decoder = Decoder(reference.get("dense").model, ScheduledStrategy([(pair[0], 2), (pair[1], 1)]))
    caches = reference.stock_caches("dense")
    with pytest.raises(Broken):
        list(decoder.generate(reference.PROMPT, 6, caches))
    assert [ticker.calls["settle"] for ticker in tickers] == [1, 1]
    reference.check_holds(
        "dense", caches, [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 6)]
    )


def test_an_observer_that_fails_in_close_is_reported_and_loses_nothing() -> None:
    def refuse(round: Round) -> None:
        raise Broken

    script = reference.scripted("qwen3_5", reference.PROMPT, 12, reference.always(None))
    decoder = Decoder(reference.get("qwen3_5").model, Fixed(script, 3), observer=refuse)
    caches = reference.stock_caches("qwen3_5")
    running = decoder.generate(reference.PROMPT, 12, caches)
    tokens = [next(running), next(running)]
    with pytest.raises(Broken):
        running.close()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("place", ["settle", "commit"])
def test_a_failure_in_settle_is_reported_and_the_text_can_be_closed(place: str) -> None:
    ticker = Ticker()
    script = reference.scripted("qwen3_5", reference.PROMPT, 12, reference.always(None))
    watched = WatchedProposer(script, ticker)
    decoder = Decoder(reference.get("qwen3_5").model, Fixed(watched, 3))
    caches = reference.stock_caches("qwen3_5")
    running = decoder.generate(reference.PROMPT, 12, caches)
    tokens = [next(running) for _ in range(2)]
    ticker.place, ticker.at = place, ticker.calls[place] + 1
    with pytest.raises(Broken):
        decoder.settle()
    ticker.place = ""
    running.close()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    reference.check_tokens("qwen3_5", reference.PROMPT, list(decoder.generate(reference.PROMPT, 5)))
