"""Several texts, decoders, models and threads in one process: none is in another's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from threading import Thread
from typing import TypeVar

import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed, MTPChain, Off, Token
from speculate.errors import DecoderBusyError
from speculate.protocols import Proposer, Strategy
from speculate.sampling.processors import Processor
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.mtp_heads import with_head
from tests.support.recording import GuidedModel, WatchedProposer


def drafting(name: str, depth: int = 3) -> Decoder:
    return Decoder(
        reference.get(name).model, Fixed(DraftModel(reference.get("small_dense").model), depth)
    )


def test_a_second_text_of_one_decoder_is_refused_while_the_first_runs() -> None:
    decoder = drafting("dense")
    running = decoder.generate(reference.PROMPT, 8)
    waiting = decoder.generate(reference.SECOND, 4)
    first = next(running)
    with pytest.raises(DecoderBusyError, match="close"):
        decoder.generate(reference.SECOND, 4)
    with pytest.raises(DecoderBusyError):
        next(waiting)
    # The one that runs is not disturbed, and the decoder is free at its end.
    reference.check_tokens("dense", reference.PROMPT, [first, *running])
    reference.check_tokens("dense", reference.SECOND, list(decoder.generate(reference.SECOND, 4)))


@pytest.mark.parametrize("ending", ["close", "settle", "drop"])
def test_a_decoder_is_free_again_once_a_text_is_given_up(ending: str) -> None:
    decoder = drafting("qwen3_5")
    running = decoder.generate(reference.PROMPT, 8)
    next(running)
    if ending == "settle":
        decoder.settle()
        with pytest.raises(DecoderBusyError):
            decoder.generate(reference.SECOND, 4)
        running.close()
    elif ending == "close":
        running.close()
    del running
    reference.check_tokens("qwen3_5", reference.SECOND, list(decoder.generate(reference.SECOND, 4)))


@pytest.mark.parametrize("name", reference.PROMISED)
def test_two_decoders_on_one_model_take_turns_token_by_token(name: str) -> None:
    one, other = drafting(name, 2), drafting(name, 3)
    first: list[Token] = []
    second: list[Token] = []
    pair = zip(
        one.generate(reference.PROMPT, 12), other.generate(reference.SECOND, 12), strict=True
    )
    for a, b in pair:
        first.append(a)
        second.append(b)
    reference.check_tokens(name, reference.PROMPT, first)
    reference.check_tokens(name, reference.SECOND, second)
    # And mlx-lm's own loop still gives what it always gave.
    assert reference.stock_ids(reference.get(name).module, reference.PROMPT, 6) == reference.truth(
        name, reference.PROMPT, 6
    )


def test_two_models_of_one_class_do_not_mix() -> None:
    names = ["dense", "small_dense"]
    runs = [drafting(name).generate(reference.PROMPT, 10) for name in names]
    found: list[list[Token]] = [[], []]
    for pair in zip(*runs, strict=True):
        for tokens, token in zip(found, pair, strict=True):
            tokens.append(token)
    for name, tokens in zip(names, found, strict=True):
        reference.check_tokens(name, reference.PROMPT, tokens)
    assert reference.ids_of(found[0]) != reference.ids_of(found[1])


def test_a_model_loaded_twice_shares_nothing() -> None:
    expected = reference.truth("qwen3_5", reference.PROMPT, 8)
    one = reference.adapted(reference.BUILDERS["qwen3_5"]())
    other = reference.adapted(reference.BUILDERS["qwen3_5"]())
    before = Decoder(one.model, Fixed(DraftModel(one.model), 2)).generate(reference.PROMPT, 8)
    first = [next(before).id]
    other.module.update({"language_model": reference.zeros(other.module)})
    after = reference.ids_of(Decoder(other.model, Off()).generate(reference.PROMPT, 8))
    assert [*first, *reference.ids_of(before)] == expected
    assert after != expected


@pytest.mark.parametrize("between", [3, 9], ids=["shorter", "longer"])
@pytest.mark.parametrize("kind", ["draft", "head"])
def test_one_proposer_serves_two_decoders_one_after_the_other(kind: str, between: int) -> None:
    model = with_head("qwen3_5").model
    proposer = DraftModel(reference.get("qwen3_5").model) if kind == "draft" else MTPChain()
    watched = WatchedProposer(proposer)
    one, other = (Decoder(model, Fixed(watched, depth)) for depth in (2, 3))
    caches = reference.stock_caches("qwen3_5")
    first = list(one.generate(reference.PROMPT, 6, caches))
    reference.check_tokens("qwen3_5", reference.PROMPT, first)
    tokens = list(other.generate(reference.text_of(6), between))
    reference.check_tokens("qwen3_5", reference.text_of(6), tokens)
    # Back at the first text the proposer knows another one, and starts late.
    text = [*reference.PROMPT, *reference.ids_of(first), *reference.THIRD]
    reference.check_tokens("qwen3_5", text, list(one.generate(reference.THIRD, 6, caches)))
    assert watched.begins[-2:] == [0, 12]
    assert proposer.position() == len(text) + 6


def test_one_proposer_may_go_from_one_target_to_another() -> None:
    proposer = DraftModel(reference.get("small_dense").model)
    for name in ("dense", "qwen3_5", "gpt_oss"):
        tokens = reference.decode(name, Fixed(proposer, 3), count=6)
        reference.check_tokens(name, reference.PROMPT, tokens)


# Threads.

ResultT = TypeVar("ResultT")


def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """What some work gives, in a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def take(running: Iterator[Token], count: int) -> list[Token]:
    return list(islice(running, count))


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("kind", ["off", "draft", "fixed"])
def test_a_text_that_begins_goes_on_and_ends_in_different_threads(name: str, kind: str) -> None:
    # Nothing of it remembers the thread in which it was made.
    model = in_thread(lambda: reference.adapted(reference.BUILDERS[name]()).model)
    strategies: dict[str, Callable[[], Strategy]] = {
        "off": Off,
        "draft": lambda: Fixed(DraftModel(reference.get("small_dense").model), 3),
        "fixed": lambda: Fixed(
            reference.scripted(name, reference.PROMPT, 20, reference.always("each")), 4
        ),
    }
    reference.truth(name, reference.PROMPT, 20)
    caches = reference.stock_caches(name)
    strategy = strategies[kind]()
    decoder = in_thread(lambda: Decoder(model, strategy))
    running = in_thread(lambda: decoder.generate(reference.PROMPT, 20, caches))
    tokens: list[Token] = []
    for count in (1, 2, 4, 1):
        tokens += in_thread(partial(take, running, count))
        # Scores may be read wherever the token is.
        assert tokens[-1].logprobs.max().item() is not None
    in_thread(decoder.settle)
    tokens.append(next(running))
    in_thread(running.close)
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    text = [*reference.PROMPT, *reference.ids_of(tokens), *reference.SECOND]
    second = in_thread(lambda: list(decoder.generate(reference.SECOND, 4, caches)))
    reference.check_tokens(name, text, second)


def test_a_head_goes_on_in_another_thread() -> None:
    tiny = with_head("qwen3_5")
    decoder = Decoder(tiny.model, Fixed(MTPChain(), 2))
    running = decoder.generate(reference.PROMPT, 12)
    tokens = in_thread(partial(take, running, 5))
    tokens += running
    reference.check_tokens("qwen3_5", reference.PROMPT, tokens)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_every_token_in_a_thread_of_its_own_with_any_proposer(name: str) -> None:
    # Who waits, because another one drafts, waits for arrays of threads that are gone.
    tiny = with_head(name)
    head, small = MTPChain(), DraftModel(reference.get("qwen3_5").model, name="small")
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 40)]
    guided = DraftModel(GuidedModel(reference.get("small_dense").model, text), name="guided")
    plans: list[tuple[Proposer, int]] = [(head, 2), (guided, 3), (small, 2), (guided, 0)]
    strategy = ScheduledStrategy([*plans, (head, 3), (guided, 0), (small, 4), (guided, 2)])

    def reads(every: int) -> Processor:
        return lambda text, logits: logits + (0 if text.shape[0] % every else 0 * text.max())

    for processors in ([], [reads(1)], [reads(7)]):
        decoder = Decoder(tiny.model, strategy, logits_processors=processors)
        caches = reference.stock_caches(name)
        running = decoder.generate(reference.PROMPT, 36, caches)
        tokens = [in_thread(partial(next, running)) for _ in range(30)]
        in_thread(running.close)
        reference.check_tokens(name, reference.PROMPT, tokens)
        reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


def test_two_threads_decode_with_one_model_at_the_same_time() -> None:
    names = ("dense", "qwen3_5")
    found: dict[tuple[str, int], list[int]] = {}

    def work(name: str, turn: int) -> None:
        decoder = drafting(name)
        found[name, turn] = reference.ids_of(decoder.generate(reference.PROMPT, 8))

    expected = {name: reference.truth(name, reference.PROMPT, 8) for name in names}
    reference.get("small_dense")
    threads = [Thread(target=work, args=(name, turn)) for name in names for turn in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(name, turn): expected[name] for name in names for turn in (0, 1)}


def test_a_given_stream_is_used() -> None:
    stream = mx.new_stream(mx.cpu)
    decoder = Decoder(reference.get("dense").model, Off(), stream=stream)
    reference.check_tokens("dense", reference.PROMPT, list(decoder.generate(reference.PROMPT, 5)))


def test_decoders_share_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stream is a thread on the CPU and a queue on Metal, and is never freed.
    made: list[mx.Device] = []
    real: Callable[[mx.Device], mx.ThreadLocalStream] = mx.new_thread_local_stream

    def counted(device: mx.Device) -> mx.ThreadLocalStream:
        made.append(device)
        return real(device)

    monkeypatch.setattr(mx, "new_thread_local_stream", counted)
    for _ in range(5):
        list(Decoder(reference.get("dense").model, Off()).generate([1, 2], 2))
    assert len(made) <= 1
