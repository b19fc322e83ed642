"""What may be asked for, and what is refused before anything happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from speculate import Decoder, Fixed, Off, Sampling, SpeculateError, SpeculativeModel
from speculate.errors import OptionError, PromptError
from speculate.protocols import Commit, Draft, DraftSampler, Plan, Proposer, Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny


def decoder(name: str = "dense") -> Decoder:
    return Decoder(reference.get(name).model, Off())


@pytest.mark.parametrize("prompt", [[], (), mx.array([], dtype=mx.uint32)], ids=["a", "b", "c"])
@pytest.mark.parametrize("name", ["dense", "gpt_oss", "qwen3_5"])
def test_an_empty_prompt_is_refused(name: str, prompt: Any) -> None:
    caches = reference.stock_caches(name)
    with pytest.raises(PromptError, match="empty"):
        decoder(name).generate(prompt, 3, caches)
    reference.check_holds(name, caches, [])


@pytest.mark.parametrize("wrong", [-1, tiny.VOCAB, 2**31, -(2**40)])
@pytest.mark.parametrize("at", [0, 2])
def test_ids_that_the_model_has_not_are_refused(wrong: int, at: int) -> None:
    prompt = [1, 2, 3]
    prompt[at] = wrong
    with pytest.raises(
        PromptError, match=f"{wrong} is outside the model's vocabulary of {tiny.VOCAB}"
    ):
        decoder().generate(prompt, 3)


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32, mx.int64, mx.uint16])
def test_a_prompt_may_be_an_array(dtype: mx.Dtype) -> None:
    tokens = list(decoder().generate(mx.array(reference.PROMPT, dtype=dtype), 3))
    reference.check_tokens("dense", reference.PROMPT, tokens)


@pytest.mark.parametrize(
    "prompt",
    [mx.array([[1, 2]]), mx.array([1.5, 2.0]), mx.array(3)],
    ids=["two axes", "not whole", "no axis"],
)
def test_an_array_that_is_no_row_of_ids_is_refused(prompt: mx.array) -> None:
    with pytest.raises(PromptError):
        decoder().generate(prompt, 3)


@pytest.mark.parametrize("prompt", [range(3, 9), (5, 9), [1]], ids=str)
def test_a_prompt_may_be_any_sequence(prompt: Any) -> None:
    reference.check_tokens("dense", list(prompt), list(decoder().generate(prompt, 3)))


@pytest.mark.parametrize("name", ["dense", "gpt_oss", "qwen3_5", "qwen3_next", "lfm2"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_prompts_shorter_than_a_convolution(name: str, length: int) -> None:
    prompt = reference.text_of(length)
    proposer = reference.scripted(name, prompt, 5, reference.always(1))
    reference.check_tokens(name, prompt, reference.decode(name, Fixed(proposer, 3), prompt, 5))


@pytest.mark.parametrize("count", [-2, -100])
def test_a_budget_below_no_limit_is_refused(count: int) -> None:
    with pytest.raises(OptionError, match=f"-1 .*got {count}"):
        decoder().generate(reference.PROMPT, count)


@pytest.mark.parametrize("depth", [-1, -7, 49, 1000])
def test_a_depth_out_of_range_is_refused(depth: int) -> None:
    proposer = reference.scripted("dense", reference.PROMPT, 3, reference.always(None))
    with pytest.raises(OptionError, match=f"0 to 48, got {depth}"):
        Fixed(proposer, depth)


def test_depth_zero_is_plain_decoding() -> None:
    proposer = reference.scripted("dense", reference.PROMPT, 8, reference.always(None))
    decoder = Decoder(reference.get("dense").model, Fixed(proposer, 0))
    reference.check_tokens("dense", reference.PROMPT, list(decoder.generate(reference.PROMPT, 8)))
    assert proposer.drafts == decoder.stats.drafts == 0
    assert proposer.position() == len(reference.PROMPT) + 8


def test_a_negative_temperature_is_refused() -> None:
    with pytest.raises(OptionError, match="temperature"):
        Sampling(temperature=-0.5)


class Odd:
    """Drafts what nobody asked for."""

    name = "odd"

    def __init__(self, draft: list[int]) -> None:
        self._draft = draft
        self._position = 0

    def attach(self, target: SpeculativeModel, /) -> None: ...

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(mx.array(self._draft, dtype=mx.int64))

    def settle(self) -> None: ...


def test_more_drafts_than_asked_for_are_an_error_and_lose_nothing() -> None:
    caches = reference.stock_caches("qwen3_5")
    decoder = Decoder(reference.get("qwen3_5").model, Fixed(Odd([1, 2, 3]), 2))
    with pytest.raises(SpeculateError, match=r"'odd' drafted 3 .*at most 2"):
        list(decoder.generate(reference.PROMPT, 5, caches))
    reference.check_holds("qwen3_5", caches, reference.PROMPT)


@pytest.mark.parametrize("draft", [[], [7]], ids=str)
def test_fewer_drafts_than_asked_for_are_fine(draft: list[int]) -> None:
    decoder = Decoder(reference.get("qwen3_5").model, Fixed(Odd(draft), 3))
    reference.check_tokens("qwen3_5", reference.PROMPT, list(decoder.generate(reference.PROMPT, 6)))


class WithoutProposer:
    """Plans drafts, but says not whose."""

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        return ()

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(None, 2)

    def observe(self, round: Round, /) -> None: ...


def test_drafts_without_a_proposer_are_an_error_and_lose_nothing() -> None:
    caches = reference.stock_caches("qwen3_5")
    decoder = Decoder(reference.get("qwen3_5").model, WithoutProposer())
    with pytest.raises(SpeculateError, match="2 drafts without a proposer"):
        list(decoder.generate(reference.PROMPT, 5, caches))
    reference.check_holds("qwen3_5", caches, reference.PROMPT)


def test_a_strategy_sees_how_much_is_left() -> None:
    heard: list[int | None] = []

    class Listening:
        """Plans as the script says, and notes what it is told."""

        def __init__(self, inner: ScheduledStrategy) -> None:
            self._inner = inner

        @property
        def proposers(self) -> list[Proposer]:
            return list(self._inner.proposers)

        def begin(self) -> None:
            self._inner.begin()

        def plan(self, remaining: int | None, /) -> Plan:
            heard.append(remaining)
            return self._inner.plan(remaining)

        def observe(self, round: Round, /) -> None:
            self._inner.observe(round)

    script = ScriptedProposer(
        [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)], vocab_size=tiny.VOCAB
    )
    strategy = Listening(ScheduledStrategy([(script, 2)]))
    decoder = Decoder(reference.get("dense").model, strategy)
    list(decoder.generate(reference.PROMPT, 7))
    assert heard == [7, 4, 1][: len(heard)]
    heard.clear()
    running = decoder.generate(reference.PROMPT, -1)
    for _ in range(4):
        next(running)
    running.close()
    assert set(heard) == {None}
