"""Stateful processors are called once for every emitted token, and never otherwise."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, Self, final

import mlx.core as mx
import pytest

from speculate import Decoder, Off, Sampling
from speculate.errors import OptionError
from speculate.sampling.options import MODES, Mode
from speculate.sampling.processors import ForkableProcessor, Processor
from tests.support import reference, tiny
from tests.support.drafters import COUNT, PROMPT, Case, headed, strategy_for
from tests.support.table_models import integer

DRAFTERS: Final = ("mtp 3", "cousin 4", "right 4", "wrong by turns 4", "switching", "nobody")
SCRIPT: Final = (5, 9, 12, 7, 33, 21)
END: Final = 60


@final
class Counting:
    """Counts its calls, and forces token 2 at the seventh."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls

    def __call__(self, tokens: mx.array, logits: mx.array, /) -> mx.array:
        self.calls += 1
        return only(2, logits) if self.calls == 7 else logits

    def fork(self) -> Self:
        return type(self)(self.calls)


@final
class Automaton:
    """Spells a script, then the end token, and must not be called after it.

    Learns from the history which token came, as a grammar's matcher does.
    """

    def __init__(self, state: int = 0) -> None:
        self.state = state

    def __call__(self, tokens: mx.array, logits: mx.array, /) -> mx.array:
        if self.state > 0:
            assert integer(tokens[-1]) == (*SCRIPT, END)[self.state - 1]
        if self.state > len(SCRIPT):
            raise RuntimeError("asked to advance past the end")
        self.state += 1
        return only((*SCRIPT, END)[self.state - 1], logits)

    def fork(self) -> Self:
        return type(self)(self.state)


def only(token: int, logits: mx.array) -> mx.array:
    return mx.where(mx.arange(logits.shape[-1]) == token, logits, -mx.inf)


def decoder_for(
    who: str, processors: list[Processor], text: tuple[int, ...], sampling: Sampling | None = None
) -> Decoder:
    case = Case("qwen3_5", 0.0, "plain")
    whole = [*PROMPT, *text]
    return Decoder(headed(case, whole), strategy_for(who, case, whole), sampling, processors)


@pytest.mark.parametrize("count", [1, 2, 5, COUNT])
@pytest.mark.parametrize("who", DRAFTERS)
def test_a_counter_counts_the_emitted_tokens(who: str, count: int) -> None:
    counter = Counting()
    text = tuple(reference.truth("qwen3_5", PROMPT, COUNT))
    found = reference.ids_of(decoder_for(who, [counter], text).generate(PROMPT, count))
    assert counter.calls == len(found) == count
    assert found[6:7] in ([], [2])


@pytest.mark.parametrize("who", DRAFTERS)
def test_a_plain_function_that_counts_does_so_too(who: str) -> None:
    calls: list[int] = []

    def count(tokens: mx.array, logits: mx.array) -> mx.array:
        calls.append(tokens.shape[0])
        return logits

    text = tuple(reference.truth("qwen3_5", PROMPT, COUNT))
    found = list(decoder_for(who, [count], text).generate(PROMPT, COUNT))
    assert calls == list(range(len(PROMPT), len(PROMPT) + len(found)))


@pytest.mark.parametrize("who", DRAFTERS)
def test_a_counter_stops_at_a_stop_token_inside_a_block(who: str) -> None:
    text = tuple(reference.truth("qwen3_5", PROMPT, COUNT))
    place = next(i for i in range(4, COUNT) if text[i] not in text[:i])
    calls: list[int] = []

    def count(tokens: mx.array, logits: mx.array) -> mx.array:
        calls.append(tokens.shape[0])
        return logits

    found = decoder_for(who, [count], text).generate(PROMPT, COUNT, stop_tokens=[text[place]])
    assert reference.ids_of(found) == list(text[: place + 1])
    assert len(calls) == place + 1


@pytest.mark.parametrize("who", DRAFTERS)
def test_each_text_starts_from_the_state_that_was_given(who: str) -> None:
    counter = Counting(calls=2)
    text = tuple(reference.truth("qwen3_5", PROMPT, COUNT))
    decoder = decoder_for(who, [counter], text)
    texts = [reference.ids_of(decoder.generate(PROMPT, 9)) for _ in range(3)]
    assert texts[0][4] == 2
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("mode", ["greedy", *MODES])
@pytest.mark.parametrize("who", DRAFTERS)
def test_an_automaton_is_never_asked_after_its_end(
    who: str, mode: Mode | Literal["greedy"]
) -> None:
    """Drafts continue after it."""
    drawn = None if mode == "greedy" else Sampling(temperature=1.0, seed=1, mode=mode)
    behind = (*SCRIPT, END, 1, 2, 3, 4)
    decoder = decoder_for(who, [Automaton()], behind, drawn)
    found = list(decoder.generate(PROMPT, COUNT, stop_tokens=[END]))
    assert reference.ids_of(found) == [*SCRIPT, END]
    assert found[-1].finish_reason == "stop"


@pytest.mark.parametrize("depth", range(1, 9))
def test_the_end_may_come_at_any_place_of_a_block(depth: int) -> None:
    decoder = decoder_for(f"right {depth}", [Automaton()], (*SCRIPT, END, 1, 2, 3, 4))
    found = decoder.generate(PROMPT, COUNT, stop_tokens=[END])
    assert reference.ids_of(found) == [*SCRIPT, END]


def test_an_automaton_is_not_asked_after_the_budget() -> None:
    for who in DRAFTERS:
        decoder = decoder_for(who, [Automaton()], (*SCRIPT, END, 1, 2, 3, 4))
        found = decoder.generate(PROMPT, len(SCRIPT) + 1)
        assert reference.ids_of(found) == [*SCRIPT, END]


def test_a_settled_run_goes_on_with_the_same_state() -> None:
    for who in DRAFTERS:
        decoder = decoder_for(who, [Automaton()], (*SCRIPT, END))
        found = []
        for token in decoder.generate(PROMPT, COUNT, stop_tokens=[END]):
            found.append(token.id)
            if token.finish_reason is None:
                decoder.settle()
        assert found == [*SCRIPT, END]


@final
class Stateful:
    """Keeps state, and cannot be copied."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits

    def method(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits


def test_an_object_that_cannot_be_forked_is_refused_by_its_name() -> None:
    whole: list[Processor] = [Stateful(), Stateful().method, partial(lambda *_, kept: kept)]
    for processor, name in zip(whole, ("Stateful", "method", "partial"), strict=True):
        with pytest.raises(OptionError, match=name) as caught:
            Decoder(reference.get("dense").model, Off(), None, [processor])
        assert "fork()" in str(caught.value)


def test_forkable_is_recognised_by_its_methods() -> None:
    assert isinstance(Counting(), ForkableProcessor)
    assert not isinstance(Stateful(), ForkableProcessor)


def test_the_caller_s_object_is_the_one_that_works_in_the_first_text() -> None:
    counter = Counting()
    decoder = decoder_for("nobody", [counter], ())
    list(decoder.generate(PROMPT, 4))
    assert counter.calls == 4
    list(decoder.generate(PROMPT, 4))
    assert counter.calls == 4


def test_a_processor_that_raises_is_reported_and_leaves_the_cache_at_the_text() -> None:
    class Broken(Exception):
        pass

    def refuse(tokens: mx.array, logits: mx.array) -> mx.array:
        if tokens.shape[0] == len(PROMPT) + 6:
            raise Broken
        return logits

    for who in DRAFTERS:
        caches = reference.stock_caches("qwen3_5")
        text = tuple(reference.truth("qwen3_5", PROMPT, COUNT))
        found: list[int] = []
        with pytest.raises(Broken):
            for token in decoder_for(who, [refuse], text).generate(PROMPT, COUNT, caches):
                found.append(token.id)
        assert found == list(text[: len(found)])
        reference.check_holds("qwen3_5", caches, [*PROMPT, *found])


def test_in_place_changes_of_the_logits_stay_in_their_row() -> None:
    def punish(tokens: mx.array, logits: mx.array) -> mx.array:
        logits[:, tokens] -= 3.0
        return logits

    text = reference.ids_of(decoder_for("nobody", [punish], ()).generate(PROMPT, 12))
    for who in DRAFTERS:
        found = decoder_for(who, [punish], tuple(text)).generate(PROMPT, 12)
        assert reference.ids_of(found) == text
    assert len(text) == 12
    assert max(text) < tiny.VOCAB
