"""The example of a sampler has the distribution of its paper, and mistakes in it are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import mlx.core as mx
import numpy as np
import pytest

import speculate as sp
from examples.top_n_sigma import TopNSigma
from speculate._mx import log_softmax
from speculate.protocols import Draft, Sampler, Strategy, Verification
from speculate.sampling import Mode
from speculate.testing import ContractError, SamplerTests, ToyModel
from speculate.testing.samplers import chi_square
from tests.support.exact_distributions import CHANCE, Floats
from tests.support.table_models import LookupProposer, TableModel, table, to_mx

TARGET: Final = table(1, 6)
DRAFTS: Final = 0.7 * TARGET + 0.5 * table(2, 6)
N, TEMPERATURE, COUNT = 1.5, 1.5, 600


def expected(n: float, temperature: float) -> Floats:
    """The distribution after each token, by the paper's rule on scaled logits."""
    scaled = TARGET / temperature
    lowest = scaled.max(axis=-1, keepdims=True) - n * scaled.std(axis=-1, keepdims=True)
    weights = np.where(scaled >= lowest, np.exp(scaled), 0.0)
    found: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return found


@cache
def text_of(drafter: str, mode: Mode) -> list[int]:
    """One long text."""
    lookup, draft = LookupProposer([1, 2, 3, 0]), sp.DraftModel(TableModel(to_mx(DRAFTS)))
    strategies: dict[str, Strategy] = {
        "nobody": sp.Off(),
        "a lookup": sp.Fixed(lookup, 2),
        "a draft model": sp.Fixed(draft, 3),
    }
    sampler = TopNSigma(N, TEMPERATURE, 11, mode)
    decoder = sp.Decoder(TableModel(to_mx(TARGET)), strategies[drafter], sampler)
    return [3, *(token.id for token in decoder.generate([3], COUNT))]


def p_value(text: list[int], p: Floats) -> float:
    """How well a text fits the distribution after each token."""
    followers, times = Counter(pairwise(text)), Counter(text[:-1])
    cells = [(followers[a, b], times[a] * p[a, b]) for a in range(6) for b in range(6)]
    impossible = any(seen and not mean for seen, mean in cells)
    return 0.0 if impossible else chi_square(cells)


@pytest.mark.parametrize(
    ("drafter", "mode"),
    [
        ("nobody", "coupled"),
        ("a lookup", "coupled"),
        ("a draft model", "coupled"),
        ("a draft model", "rejection"),
        ("a draft model", "block"),
    ],
)
def test_tokens_have_the_distribution_of_the_paper(drafter: str, mode: Mode) -> None:
    assert p_value(text_of(drafter, mode), expected(N, TEMPERATURE)) > CHANCE


@pytest.mark.parametrize(("n", "temperature"), [(1.0, 1.5), (2.5, 1.5), (9.0, 1.5), (1.5, 0.5)])
def test_another_distribution_is_told_apart(n: float, temperature: float) -> None:
    assert p_value(text_of("nobody", "coupled"), expected(n, temperature)) < CHANCE


def test_the_text_does_not_depend_on_the_drafts() -> None:
    texts = [text_of(drafter, "coupled") for drafter in ("nobody", "a lookup", "a draft model")]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_the_kept_tokens_do_not_depend_on_the_temperature(temperature: float) -> None:
    weights = TopNSigma(1.5, temperature).log_weights(to_mx(TARGET), range(6))
    assert np.array_equal(np.array(weights) > -np.inf, expected(1.5, 1.0) > 0)


# The tests of the kit find what can go wrong.


Verify = Callable[[mx.array, Draft, mx.array], Verification]


def patched(sampler: TopNSigma, verify: Verify) -> Sampler:
    """The sampler with another `verify`."""
    sampler.verify = verify  # type: ignore[method-assign]
    return sampler


class Trusting(SamplerTests):
    """Accepts the drafts that it keeps, drawn or not."""

    def make_sampler(self) -> Sampler:
        sampler = TopNSigma(n=1.5, temperature=0.8, seed=3)
        right = sampler.verify

        def verify(last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
            verification, k = right(last_token, draft, logits), draft.tokens.shape[0]
            if not k:
                return verification
            rows = mx.take_along_axis(logits[:k], draft.tokens[:, None], axis=-1)[:, 0]
            likely = rows > logits[:k].max(axis=-1) - 1.5 * mx.std(logits[:k], axis=-1)
            accepted = mx.cumprod(likely.astype(mx.int32)).sum()
            return Verification(accepted, verification.tokens, logits)

        return patched(sampler, verify)


def test_drafts_that_are_accepted_untested_are_found() -> None:
    with pytest.raises(ContractError, match="instead of"):
        Trusting().test_output_is_that_of_plain_decoding()


class Flattered(SamplerTests):
    """Takes a draft without a distribution for one drawn from the target's own."""

    same_text = False

    def make_sampler(self) -> Sampler:
        sampler = TopNSigma(n=1.5, temperature=0.8, seed=3, mode="rejection")
        right = sampler.verify

        def verify(last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
            k = draft.tokens.shape[0]
            own = log_softmax(sampler.log_weights(logits, range(k + 1)))
            return right(
                last_token, Draft(draft.tokens, draft.logprobs or list(own[:k, None])), logits
            )

        return patched(sampler, verify)


def test_drafts_that_are_verified_by_another_distribution_are_found() -> None:
    with pytest.raises(ContractError, match="p-value"):
        Flattered().test_output_is_that_of_plain_decoding()


class Continuing(SamplerTests):
    """Goes on with the noise of the sequence before."""

    same_text = False

    def make_sampler(self) -> Sampler:
        sampler = TopNSigma(n=1.5, temperature=0.8, seed=3, mode="rejection")
        rule, right = sampler._rule, sampler.begin

        def begin(history: Sequence[int], position: int, stop: Collection[int], /) -> None:
            right(history, position, stop)
            sampler._rule = rule

        sampler.begin = begin  # type: ignore[method-assign]
        return sampler


def test_a_sequence_that_is_not_forgotten_is_found() -> None:
    with pytest.raises(ContractError, match="after another sequence"):
        Continuing().test_begin_forgets_the_sequence_before()


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
