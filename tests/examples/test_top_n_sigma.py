"""The example of a sampler, proved by the tests that its author would inherit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

import speculate as sp
from examples.top_n_sigma import TopNSigma
from speculate.protocols import Decision, Draft, Sampler, Strategy
from speculate.sampling import Mode
from speculate.testing import ContractError, SamplerTests, ToyModel
from speculate.testing._sampler_harness import chi_square
from tests.sampling.laws import CHANCE, Floats
from tests.sampling.toys import LookupProposer, TableModel, table, to_mx


class TestCoupled(SamplerTests):
    def make_sampler(self) -> Sampler:
        return TopNSigma(n=1.5, temperature=0.8, seed=3)


class TestRejection(SamplerTests):
    same_text = False

    def make_sampler(self) -> Sampler:
        return TopNSigma(n=1.5, temperature=0.8, seed=3, mode="rejection")


class TestBlock(SamplerTests):
    same_text = False

    def make_sampler(self) -> Sampler:
        return TopNSigma(n=1.5, temperature=0.8, seed=3, mode="block")


# Its distribution, by another library.

TARGET = table(1, 6)
DRAFTS = 0.7 * TARGET + 0.5 * table(2, 6)
STRATEGIES = {
    "nobody": sp.Off,
    "a lookup": lambda: sp.Fixed(LookupProposer([1, 2, 3, 0]), 2),
    "a draft model": lambda: sp.Fixed(sp.DraftModel(TableModel(to_mx(DRAFTS))), 3),
}


def expected(n: float, temperature: float) -> Floats:
    """The distribution after each token, by the paper's algorithm 1."""
    scaled = TARGET / temperature
    lowest = scaled.max(axis=-1, keepdims=True) - n * scaled.std(axis=-1, keepdims=True)
    weights = np.where(scaled >= lowest, np.exp(scaled), 0.0)
    found: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return found


def p_value(strategy: Strategy, mode: Mode, p: Floats) -> float:
    """How well one long text fits the distribution after each token."""
    sampler = TopNSigma(1.5, 0.8, 11, mode)
    decoder = sp.Decoder(TableModel(to_mx(TARGET)), strategy, sampler)
    text = [3, *(token.id for token in decoder.generate([3], 900))]
    followers, times = Counter(pairwise(text)), Counter(text[:-1])
    cells = [(followers[a, b], times[a] * p[a, b]) for a in range(6) for b in range(6)]
    impossible = any(seen and not mean for seen, mean in cells)
    return 0.0 if impossible else chi_square(cells)


@pytest.mark.parametrize("mode", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_have_the_distribution_of_the_paper(name: str, mode: Mode) -> None:
    assert p_value(STRATEGIES[name](), mode, expected(1.5, 0.8)) > CHANCE
    some = (expected(1.5, 0.8) > 0).sum(axis=-1)
    assert 1 < some.mean() < 5


@pytest.mark.parametrize(("n", "temperature"), [(1.0, 0.8), (2.5, 0.8), (1.5, 1.4), (1.5, 0.5)])
def test_another_distribution_is_told_apart(n: float, temperature: float) -> None:
    assert p_value(sp.Off(), "coupled", expected(n, temperature)) < 1e-6


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_the_kept_tokens_do_not_depend_on_the_temperature(temperature: float) -> None:
    weights = TopNSigma(1.5, temperature).log_weights(to_mx(TARGET), range(6))
    assert np.array_equal(np.array(weights) > -np.inf, expected(1.5, 1.0) > 0)


# The tests of the kit find what can go wrong.


class Trusting(SamplerTests):
    """Accepts the drafts that it keeps, drawn or not."""

    def make_sampler(self) -> Sampler:
        sampler: Sampler = TopNSigma(n=1.5, temperature=0.8, seed=3)
        right = sampler.verify

        def verify(last_token: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
            decision, k = right(last_token, draft, logits), draft.tokens.shape[0]
            if not k:
                return decision
            rows = mx.take_along_axis(logits[:k], draft.tokens[:, None], axis=-1)[:, 0]
            likely = rows > logits[:k].max(axis=-1) - 1.5 * mx.std(logits[:k], axis=-1)
            accepted = mx.cumprod(likely.astype(mx.int32)).sum()
            return Decision(accepted, decision.tokens, logits)

        sampler.verify = verify  # type: ignore[method-assign]
        return sampler


def test_drafts_that_are_accepted_untested_are_found() -> None:
    with pytest.raises(ContractError, match="instead of"):
        Trusting().test_output_is_that_of_plain_decoding()


class Biased(TestRejection):
    """Says that it drew each draft with certainty."""

    def make_sampler(self) -> Sampler:
        sampler: Sampler = TopNSigma(n=1.5, temperature=0.8, seed=3, mode="rejection")
        right = sampler.verify

        def verify(last_token: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
            return right(last_token, Draft(draft.tokens), logits)

        sampler.verify = verify  # type: ignore[method-assign]
        return sampler


def test_drafts_that_are_verified_by_another_distribution_are_found() -> None:
    with pytest.raises(ContractError, match="p-value"):
        Biased().test_output_is_that_of_plain_decoding(3000)


# With a model.


@pytest.mark.parametrize("depth", [1, 4])
def test_the_text_is_the_same_with_drafts(depth: int) -> None:
    model, prompt = ToyModel(), [5, 9, 12, 3, 7, 1]
    sampler = TopNSigma(n=2.0, temperature=1.5, seed=5)
    plain = [token.id for token in sp.Decoder(model, sp.Off(), sampler).generate(prompt, 40)]
    decoder = sp.Decoder(model, sp.Fixed(sp.DraftModel(model), depth), sampler)
    for _ in range(2):
        assert [token.id for token in decoder.generate(prompt, 40)] == plain
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
