"""A token that is kept holds its own scores, and not those of the block that it came from."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import mlx.core as mx
import pytest

from speculate import Decoder, Fixed, Off, Token
from speculate.protocols import Strategy
from speculate.sampling.processors import Processor
from speculate.testing import ScriptedProposer
from tests.support import reference, tiny

VOCAB: Final = 8000
ROW: Final = 4 * VOCAB
COUNT: Final = 24
DEPTH: Final = 8
PROMPT: Final = [5, 9, 3]

MODEL: Final = reference.adapted(tiny.dense(seed=1, vocab_size=VOCAB)).model
PLAIN: Final = list(Decoder(MODEL, Off()).generate(PROMPT, COUNT))


def drafting(wrong: Callable[[int], int | None]) -> Strategy:
    text = [*PROMPT, *reference.ids_of(PLAIN)]
    return Fixed(ScriptedProposer(text, wrong, vocab_size=VOCAB), DEPTH)


def nothing(tokens: mx.array, logits: mx.array) -> mx.array:
    """A processor of somebody else's: rows are judged one by one."""
    return logits


STRATEGIES: Final[dict[str, Callable[[], Strategy]]] = {
    "plain": Off,
    "all rejected": lambda: drafting(lambda _: 0),
    "some accepted": lambda: drafting(lambda n: n % 3),
    "all accepted": lambda: drafting(lambda _: None),
}


def active() -> int:
    """Bytes of arrays that are alive, once what is under way is done."""
    gc.collect()
    mx.synchronize()
    return mx.get_active_memory()


def held_by(make: Callable[[], list[Token]]) -> float:
    """Bytes of arrays that each token keeps alive, with what was left of a run gone."""
    make()
    before = active()
    tokens = make()
    held = active() - before
    assert reference.ids_of(tokens) == reference.ids_of(PLAIN)[: len(tokens)]
    return held / len(tokens)


@pytest.mark.parametrize("processors", [(), (nothing,)], ids=["", "row by row"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_kept_token_holds_one_row(name: str, processors: tuple[Processor, ...]) -> None:
    decoder = Decoder(MODEL, STRATEGIES[name](), None, processors)
    assert held_by(lambda: list(decoder.generate(PROMPT, COUNT))) < 1.02 * ROW


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_kept_token_whose_scores_were_read_holds_these_alone(name: str) -> None:
    decoder = Decoder(MODEL, STRATEGIES[name]())

    def read() -> list[Token]:
        tokens = []
        for token in decoder.generate(PROMPT, COUNT):
            # Read and not computed by whoever read it.
            assert token.logprobs.shape == (VOCAB,)
            tokens.append(token)
        return tokens

    assert held_by(read) < 1.02 * ROW

    def read_later() -> list[Token]:
        tokens = list(decoder.generate(PROMPT, COUNT))
        for token in tokens:
            assert token.logprobs is token.logprobs
        return tokens

    assert held_by(read_later) < 1.02 * ROW


@pytest.mark.parametrize("ending", ["close", "settle", "raise"])
def test_tokens_of_a_text_that_is_given_up_hold_one_row_each(ending: str) -> None:
    decoder = Decoder(MODEL, drafting(lambda _: 3))

    def some() -> list[Token]:
        running = decoder.generate(PROMPT, COUNT)
        tokens = list(islice(running, 10))
        if ending == "settle":
            decoder.settle()
            tokens += islice(running, 3)
        if ending == "raise":
            with pytest.raises(KeyboardInterrupt):
                running.throw(KeyboardInterrupt())
        running.close()
        return tokens

    assert held_by(some) < 1.02 * ROW


def test_half_a_text_is_held_while_the_run_goes_on() -> None:
    decoder = Decoder(MODEL, drafting(lambda _: 0))
    held_by(lambda: list(decoder.generate(PROMPT, COUNT)))
    before = active()
    running = decoder.generate(PROMPT, COUNT)
    tokens = list(islice(running, 4))
    few = active()
    tokens += islice(running, 12)
    # What the run itself holds is the same at both places.
    assert active() - few < 1.1 * 12 * ROW
    running.close()
    del tokens
    assert active() - before < ROW


def test_tokens_that_are_not_kept_cost_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    contiguous = mx.contiguous

    def counted(array: mx.array) -> mx.array:
        copied.append(array.size)
        return contiguous(array)

    monkeypatch.setattr("speculate.decoding.block.mx.contiguous", counted)
    for name in STRATEGIES:
        ids = [token.id for token in Decoder(MODEL, STRATEGIES[name]()).generate(PROMPT, COUNT)]
        assert ids == reference.ids_of(PLAIN)
    # The last block's tokens are there when the text ends.
    assert copied.count(VOCAB) <= len(STRATEGIES) * 2


@pytest.mark.parametrize("name", STRATEGIES)
def test_scores_are_the_same_whenever_and_wherever_they_are_read(name: str) -> None:
    decoder = Decoder(MODEL, STRATEGIES[name]())
    wanted = mx.stack([token.logprobs for token in PLAIN])
    at_once = [token.logprobs for token in decoder.generate(PROMPT, COUNT)]
    assert mx.array_equal(mx.stack(at_once), wanted).item()
    later = list(decoder.generate(PROMPT, COUNT))
    assert mx.array_equal(mx.stack([token.logprobs for token in later]), wanted).item()
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(lambda: list(decoder.generate(PROMPT, COUNT))).result()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: [token.logprobs for token in elsewhere]).result()
    # Also what was read in a thread that is gone.
    assert mx.array_equal(mx.stack(found), wanted).item()
    running = decoder.generate(PROMPT, COUNT)
    tokens = []
    for row in wanted:
        with ThreadPoolExecutor(1) as pool:
            tokens.append(pool.submit(next, running).result())
        assert mx.array_equal(tokens[-1].logprobs, row).item()
        if len(tokens) > 9:
            assert mx.array_equal(tokens[-9].logprobs, wanted[len(tokens) - 9]).item()
