"""mlx-lm's samplers, and processors called row by row: the distribution is unchanged."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_sampler

from speculate import Decoder, DraftModel, Fixed, Off, Sampling
from speculate.protocols import Strategy
from speculate.sampling.acceptance import CallablePicker, SamplerCallable
from speculate.sampling.options import Mode
from speculate.sampling.processors import Processor
from speculate.testing.samplers import chi_square
from tests.support import reference
from tests.support.drafters import COUNT, PROMPT, Case, headed, strategy_for
from tests.support.exact_distributions import CHANCE, Floats, distribution
from tests.support.table_models import (
    LookupProposer,
    TableModel,
    integer,
    ints,
    number,
    table,
    to_mx,
)

VOCAB: Final = 4
TARGET: Final = table(1, VOCAB)
START: Final = 3
OPTIONS: Final = Sampling(temperature=0.9, top_k=3)


def chain(
    strategy: Strategy,
    sampling: Sampling | SamplerCallable,
    count: int,
    processors: tuple[Processor, ...] = (),
) -> list[int]:
    """One long text."""
    decoder = Decoder(TableModel(to_mx(TARGET)), strategy, sampling, processors)
    return reference.ids_of(decoder.generate([START], count))


def p_of_steps(text: list[int], p: Floats) -> float:
    """How well the steps of a chain fit the distribution after each token."""
    after: dict[int, Counter[int]] = defaultdict(Counter)
    for last_token, token in zip([START, *text], text, strict=False):
        after[last_token][token] += 1
    cells = [
        (seen[token], seen.total() * p[last_token, token])
        for last_token, seen in after.items()
        for token in range(VOCAB)
        if p[last_token, token] > 0
    ]
    assert all(p[last_token, token] > 0 for last_token, seen in after.items() for token in seen)
    return chi_square(cells)


def drafting() -> Fixed:
    return Fixed(DraftModel(TableModel(to_mx(0.7 * TARGET + 0.5 * table(2, VOCAB)))), 2)


def test_a_sampler_s_rows_have_its_distribution() -> None:
    mx.random.seed(0)
    chooser = CallablePicker(make_sampler(temp=0.9, top_k=3))
    rows = mx.broadcast_to(to_mx(TARGET)[:1], (500, VOCAB))
    seen = Counter(ints(chooser.pick(rows, range(500))))
    p = distribution(TARGET[0], OPTIONS)
    assert chi_square([(seen[token], 500 * p[token]) for token in range(VOCAB)]) > CHANCE


@pytest.mark.parametrize(
    "strategy", [Off(), drafting(), Fixed(LookupProposer([1, 2, 3, 0]), 2)], ids=lambda _: ""
)
def test_a_sampler_keeps_its_distribution_with_any_proposer(strategy: Strategy) -> None:
    mx.random.seed(1)
    text = chain(strategy, make_sampler(temp=0.9, top_k=3), 600)
    assert p_of_steps(text, np.stack([distribution(row, OPTIONS) for row in TARGET])) > CHANCE


def test_a_sampler_sees_log_probabilities_one_row_at_a_time_and_in_order() -> None:
    handed: list[int] = []

    def sampler(logprobs: mx.array) -> mx.array:
        assert logprobs.shape == (1, 64)
        assert abs(number(mx.logsumexp(logprobs))) < 1e-5
        handed.append(integer(mx.argmax(logprobs, axis=-1)))
        return mx.argmax(logprobs, axis=-1)

    case = Case("qwen3_5", 0.0, "plain")
    text = [*PROMPT, *reference.truth("qwen3_5", PROMPT, COUNT)]
    decoder = Decoder(case.model, strategy_for("right 4", case, text), sampler)
    assert reference.ids_of(decoder.generate(PROMPT, COUNT)) == text[len(PROMPT) :]
    assert handed == text[len(PROMPT) :]
    assert decoder.stats.seed is None


@pytest.mark.parametrize("who", ["mtp 3", "cousin 4", "right 4", "wrong by turns 4", "switching"])
def test_a_greedy_sampler_gives_the_greedy_text(who: str) -> None:
    case = Case("qwen3_5", 0.0, "plain")
    text = [*PROMPT, *reference.truth("qwen3_5", PROMPT, COUNT)]
    decoder = Decoder(headed(case, text), strategy_for(who, case, text), make_sampler(temp=0.0))
    assert reference.ids_of(decoder.generate(PROMPT, COUNT)) == text[len(PROMPT) :]


def flattened(tokens: mx.array, logits: mx.array) -> mx.array:
    """Somebody's function, which may keep state for all we know."""
    return logits * 0.5


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("who", ["drafted", "looked up"])
def test_a_row_at_a_time_keeps_the_distribution(who: str, mode: Mode) -> None:
    strategy = drafting() if who == "drafted" else Fixed(LookupProposer([1, 2, 3, 0]), 2)
    sampling = Sampling(temperature=0.9, top_k=3, seed=5, mode=mode)
    text = chain(strategy, sampling, 600, (flattened,))
    p = np.stack([distribution(0.5 * row, OPTIONS) for row in TARGET])
    assert p_of_steps(text, p) > CHANCE
    wrong = np.stack([distribution(row, OPTIONS) for row in TARGET])
    assert p_of_steps(text, wrong) < 1e-3


def test_a_row_at_a_time_or_a_block_at_once_is_the_same_text_when_coupled() -> None:
    def nothing(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits

    sampling = Sampling(temperature=0.9, top_p=0.9, seed=5)
    assert chain(drafting(), sampling, 60, (nothing,)) == chain(drafting(), sampling, 60)
