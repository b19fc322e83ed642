"""Logits processors: the tokens of mlx-lm's plain decoding, for every proposer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Final, cast

import attrs
import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from speculate import Decoder, Off, Sampling
from speculate.sampling.options import MODES, Mode
from speculate.sampling.processors import Processor
from tests.support import reference, tiny
from tests.support.drafters import COUNT, PROMPT, Case, headed, strategy_for

BUDGET: Final = 6
DRAFTERS: Final = ("mtp 3", "cousin 4", "right 4", "wrong by turns 4", "switching", "nobody")


def budget(tokens: mx.array, logits: mx.array) -> mx.array:
    """Ends the thinking, by token 2, after six tokens."""
    if tokens.shape[0] - len(PROMPT) == BUDGET:
        return mx.where(mx.arange(logits.shape[-1]) == 2, logits, -mx.inf)
    return logits


def never_the_best(tokens: mx.array, logits: mx.array) -> mx.array:
    """A bias of minus infinity on the most likely token of every step."""
    return mx.where(logits == logits.max(axis=-1, keepdims=True), -mx.inf, logits)


PENALTIES: Final[dict[str, Sampling]] = {
    "repetition": Sampling(repetition_penalty=1.8),
    "frequency": Sampling(frequency_penalty=0.9, frequency_context_size=30),
    "presence": Sampling(presence_penalty=1.5),
    "everything": Sampling(
        repetition_penalty=1.2,
        repetition_context_size=5,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={4: 3.0, 9: -50.0},
    ),
}
FUNCTIONS: Final[dict[str, Processor]] = {"budget": budget, "never the best": never_the_best}


def of_mlx_lm(name: str) -> list[Processor]:
    """Fresh processors, in mlx-lm's form."""
    if name in FUNCTIONS:
        return [FUNCTIONS[name]]
    options = PENALTIES[name]
    found = make_logits_processors(
        logit_bias=None if options.logit_bias is None else dict(options.logit_bias),
        repetition_penalty=options.repetition_penalty,
        repetition_context_size=options.repetition_context_size,
        presence_penalty=options.presence_penalty,
        presence_context_size=options.presence_context_size,
        frequency_penalty=options.frequency_penalty,
        frequency_context_size=options.frequency_context_size,
    )
    return list(found)


@cache
def by_mlx_lm(family: str, name: str) -> list[int]:
    """The text of mlx-lm's own loop with the same processors."""
    steps = generate_step(
        mx.array(PROMPT),
        reference.get(family).module,
        max_tokens=COUNT,
        logits_processors=of_mlx_lm(name),
    )
    return [int(token) for token, _ in steps]


def decoded(
    family: str,
    who: str,
    text: Sequence[int],
    sampling: Sampling,
    processors: Sequence[Processor] = (),
) -> list[int]:
    case = Case(family, 0.0, "plain")
    whole = [*PROMPT, *text]
    strategy = strategy_for(who, case, whole)
    decoder = Decoder(headed(case, whole), strategy, sampling, processors)
    return reference.ids_of(decoder.generate(PROMPT, COUNT))


ALL: Final = [
    case
    for case in product(reference.PROMISED, (*PENALTIES, *FUNCTIONS), DRAFTERS, ("given", "own"))
    if case[3] == "given" or case[1] in PENALTIES
]


@pytest.mark.parametrize("case", reference.sampled(ALL, 20, seed=2))
def test_the_text_is_mlx_lm_s_with_any_proposer(case: tuple[str, str, str, str]) -> None:
    family, name, who, how = case
    text = by_mlx_lm(family, name)
    if how == "own":
        assert decoded(family, who, text, PENALTIES[name]) == text
    else:
        assert decoded(family, who, text, Sampling(), of_mlx_lm(name)) == text


@pytest.mark.parametrize("name", [*PENALTIES, *FUNCTIONS])
def test_the_processors_do_something_here(name: str) -> None:
    assert by_mlx_lm("qwen3_5", name) != reference.truth("qwen3_5", PROMPT, COUNT)


@pytest.mark.parametrize("who", DRAFTERS)
def test_the_thinking_ends_where_plain_decoding_ends_it(who: str) -> None:
    text = by_mlx_lm("qwen3_5", "budget")
    found = decoded("qwen3_5", who, text, Sampling(), [budget])
    assert found[BUDGET] == 2
    assert found[:BUDGET] == reference.truth("qwen3_5", PROMPT, BUDGET)


@pytest.mark.parametrize("who", DRAFTERS)
def test_a_banned_token_is_never_emitted(who: str) -> None:
    plain = reference.truth("qwen3_5", PROMPT, COUNT)
    banned = {token: float("-inf") for token in set(plain)}
    found = decoded("qwen3_5", who, plain, Sampling(logit_bias=banned))
    assert not banned.keys() & set(found)
    drawn = Sampling(logit_bias=banned, temperature=1.5, seed=3, mode="block")
    assert not banned.keys() & set(decoded("qwen3_5", who, plain, drawn))


@pytest.mark.parametrize("extra", [(), (budget,)], ids=["pure", "with a function"])
@pytest.mark.parametrize("who", [*DRAFTERS, "right 1", "twin 5"])
def test_every_history_is_the_prompt_and_the_emitted_tokens(
    who: str, extra: tuple[Processor, ...]
) -> None:
    seen: list[list[int]] = []

    def watch(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(cast("list[int]", tokens.tolist()))
        assert logits.shape == (1, tiny.VOCAB)
        return logits

    text = reference.truth("qwen3_5", PROMPT, COUNT)
    found = decoded("qwen3_5", who, text, Sampling(), [watch, *extra])
    assert seen == [[*PROMPT, *found[:place]] for place in range(COUNT)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["nobody", "cousin 4"])
def test_histories_hold_above_temperature_zero_too(who: str, mode: Mode) -> None:
    seen: list[list[int]] = []

    def watch(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(cast("list[int]", tokens.tolist()))
        return logits

    sampling = Sampling(temperature=1.0, seed=4, mode=mode)
    found = decoded("qwen3_5", who, [], sampling, [watch])
    assert seen == [[*PROMPT, *found[:place]] for place in range(COUNT)]


def test_the_options_own_penalties_come_before_the_caller_s_processors() -> None:
    handed: list[list[float]] = []

    def watch(tokens: mx.array, logits: mx.array) -> mx.array:
        handed.append(cast("list[float]", logits[0].tolist()))
        return logits

    decoded("dense", "nobody", [], Sampling(logit_bias={7: -1000.0}), [watch])
    assert all(row[7] < -900 for row in handed)


@pytest.mark.parametrize("who", ["nobody", "cousin 3", "wrong by turns 4"])
@pytest.mark.parametrize("name", ["repetition", "everything"])
def test_penalties_and_seeds_together_are_plain_decoding_s(name: str, who: str) -> None:
    drawn = attrs.evolve(PENALTIES[name], temperature=0.9, seed=8)
    plain = decoded("qwen3_next", "nobody", [], drawn)
    assert decoded("qwen3_next", who, plain, drawn) == plain
    given = Sampling(temperature=0.9, seed=8)
    assert decoded("qwen3_next", who, plain, given, of_mlx_lm(name)) == plain


def test_earlier_turns_are_seen_where_they_are_given_and_only_there() -> None:
    seen: list[list[int]] = []

    def watch(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(cast("list[int]", tokens.tolist()))
        return logits

    case = Case("qwen3_5", 0.0, "plain")
    decoder = Decoder(case.model, strategy_for("cousin 3", case, []), None, [watch])
    caches = reference.stock_caches("qwen3_5")
    first = reference.ids_of(decoder.generate(PROMPT, 5, caches))
    seen.clear()
    second = reference.ids_of(decoder.generate(reference.SECOND, 5, caches))
    assert seen == [[*reference.SECOND, *second[:place]] for place in range(5)]
    seen.clear()
    before = [*PROMPT, *first, *reference.SECOND, *second]
    third = reference.ids_of(decoder.generate(reference.THIRD, 5, caches, history=before))
    assert seen == [[*before, *reference.THIRD, *third[:place]] for place in range(5)]


def test_a_penalty_reaches_back_into_earlier_turns_that_are_given() -> None:
    sampling = Sampling(repetition_penalty=50.0, repetition_context_size=100)
    history = list(range(10, tiny.VOCAB))
    decoder = Decoder(reference.get("dense").model, Off(), sampling)
    found = reference.ids_of(decoder.generate([1, 2], 3, history=history))
    without = reference.ids_of(decoder.generate([1, 2], 3))
    assert found != without
    assert found[0] < 10
