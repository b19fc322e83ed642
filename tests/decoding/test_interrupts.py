"""Ctrl-C at any line: the caches are the caller's again, and hold the text that was seen."""

from __future__ import annotations

import random
from functools import cache
from typing import Final

import pytest

from speculate import Decoder, Off, Token
from speculate.testing import ScheduledStrategy
from tests.decoding import kit
from tests.decoding.interrupting import Interrupter

COUNT: Final = 7
SETTLED_AFTER: Final = 3
NAMES: Final = ("dense", "gpt_oss", "qwen3_5", "qwen3_5_folded", "lfm2", "quantised")
SAMPLED: Final = 12


def model_of(name: str) -> str:
    return "wide_heads" if name == "quantised" else name


def stock_caches(name: str) -> list[object]:
    return kit.stock_caches(model_of(name))


def decoder_of(name: str, depths: tuple[int, ...]) -> Decoder:
    """A decoder whose drafts are wrong in turn, at the first, the second, ..."""
    proposer = kit.scripted(model_of(name), kit.PROMPT, COUNT, kit.always("each"))
    strategy = ScheduledStrategy([(proposer, depth) for depth in depths]) if depths else Off()
    bits = 8 if name == "quantised" else None
    return Decoder(
        kit.get(model_of(name)).model,
        strategy,
        kv_bits=bits,
        kv_group_size=32,
        quantized_kv_start=8,
        prefill_step_size=3,
    )


def run(name: str, decoder: Decoder, caches: list[object], tokens: list[Token]) -> None:
    """A text that is settled in the middle."""
    running = decoder.generate(kit.PROMPT, COUNT, caches)
    try:
        for token in running:
            tokens.append(token)
            if len(tokens) == SETTLED_AFTER:
                decoder.settle()
    finally:
        running.close()


DEPTHS: Final = (3, 0, 0, 2)


@cache
def lines(name: str) -> int:
    """How many lines of the package a run executes, once everything is made that is made once."""
    counting = Interrupter()
    for _ in range(2):
        decoder, caches, counting = decoder_of(name, DEPTHS), stock_caches(name), Interrupter()
        with counting:
            run(name, decoder, caches, [])
    return counting.lines


@cache
def left_behind(name: str, emitted: int) -> list[object]:
    """What plain decoding leaves after so many tokens."""
    caches = stock_caches(name)
    list(decoder_of(name, ()).generate(kit.PROMPT, emitted, caches))
    return caches


def check(name: str, at: int) -> None:
    caches = stock_caches(name)
    objects = list(caches)
    decoder = decoder_of(name, DEPTHS)
    tokens: list[Token] = []
    with pytest.raises(KeyboardInterrupt) as caught, Interrupter(at):
        run(name, decoder, caches, tokens)
    try:
        check_after(name, decoder, caches, objects, tokens)
    except Exception as error:
        raise AssertionError(f"line {at} of {name}, {caught.value}: {error}") from error


def check_after(
    name: str, decoder: Decoder, caches: list[object], objects: list[object], tokens: list[Token]
) -> None:
    ids = kit.ids_of(tokens)
    assert ids == kit.truth(model_of(name), kit.PROMPT, len(ids))
    if name != "quantised":
        assert all(a is b for a, b in zip(caches, objects, strict=True)), "other objects"
    assert decoder.pending is None
    text = [*kit.PROMPT, *ids]
    # Before the first token: what they held, or the prompt.
    if not ids and kit.offset(caches[-1]) == 0:
        kit.same_content(caches, stock_caches(name))
        text = []
    else:
        kit.same_content(caches, left_behind(name, len(ids)))
    stats = decoder.stats
    assert stats.emitted_tokens == len(ids), "emitted"
    assert stats.accepted_tokens == sum(token.from_draft for token in tokens), "accepted"
    assert stats.round_tokens == len(ids), "round tokens"
    assert stats.drafts == sum(d.drafts for d in stats.by_proposer.values()), "drafts"
    if name == "quantised":
        return
    second = list(decoder.generate(kit.SECOND, 3, caches))
    kit.check_tokens(model_of(name), [*text, *kit.SECOND], second)
    kit.check_holds(model_of(name), caches, [*text, *kit.SECOND, *kit.ids_of(second)])


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_at_some_lines(name: str) -> None:
    for at in random.Random(name).sample(range(1, lines(name) + 1), SAMPLED):
        check(name, at)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_at_every_line(name: str) -> None:
    failures = []
    for at in range(1, lines(name) + 1):
        try:
            check(name, at)
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, "\n".join(failures)
