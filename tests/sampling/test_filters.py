"""Filters, temperature and penalties are mlx-lm's own, in mlx-lm's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils
from mlx_lm.sample_utils import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    apply_xtc,
    make_logits_processors,
    make_sampler,
)

from speculate import Sampling
from speculate.sampling import filters
from speculate.sampling.filters import Distribution
from speculate.sampling.processors import Processor, penalties
from tests.support.table_models import to_mx

ROWS: Final = 40
WIDTH: Final = 50


@pytest.fixture(autouse=True)
def _without_compiler() -> Iterator[None]:
    """mlx-lm compiles a filter anew for every value of its options."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def logprobs(seed: int, *, ties: bool = False, masked: bool = False) -> mx.array:
    """Rows of log-probabilities."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(ROWS, WIDTH)) * 3
    if ties:
        logits = np.round(logits)
    if masked:
        logits[generator.random(logits.shape) < 0.3] = -np.inf
    rows = to_mx(logits)
    return rows - mx.logsumexp(rows, axis=-1, keepdims=True)


KINDS: Final = {
    "plain": logprobs(1),
    "ties": logprobs(2, ties=True),
    "masked": logprobs(3, masked=True),
    "masked ties": logprobs(4, ties=True, masked=True),
}


def same(ours: mx.array, theirs: mx.array) -> bool:
    return bool(mx.array_equal(ours, theirs).item())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_top_p_is_mlx_lm_s(p: float, kind: str) -> None:
    assert same(filters.top_p(KINDS[kind], p), apply_top_p(KINDS[kind], p))


@pytest.mark.parametrize("kind", ["plain", "masked"])
@pytest.mark.parametrize("keep", [1, 2, 7])
@pytest.mark.parametrize("p", [0.001, 0.05, 0.3, 1.0])
def test_min_p_is_mlx_lm_s(p: float, keep: int, kind: str) -> None:
    assert same(filters.min_p(KINDS[kind], p, keep), apply_min_p(KINDS[kind], p, keep))


@pytest.mark.parametrize("kind", ["plain", "masked"])
@pytest.mark.parametrize("k", [1, 2, 10, WIDTH - 1])
def test_top_k_is_mlx_lm_s(k: int, kind: str) -> None:
    assert same(filters.top_k(KINDS[kind], k), apply_top_k(KINDS[kind], k))


@pytest.mark.parametrize("k", [1, 2, 10, WIDTH - 1])
def test_top_k_keeps_as_many_of_equal_tokens_and_the_lowest_ids(k: int) -> None:
    found = filters.top_k(KINDS["ties"], k)
    theirs = apply_top_k(KINDS["ties"], k)
    assert (found > -mx.inf).sum(axis=-1).tolist() == [k] * ROWS
    assert same(mx.sort(found, axis=-1), mx.sort(theirs, axis=-1))
    for row, before in zip(np.array(found), np.array(KINDS["ties"]), strict=True):
        best = np.argsort(-before, kind="stable")[:k]
        assert set(np.flatnonzero(row > -np.inf)) == set(best)


@pytest.mark.parametrize("k", [WIDTH, WIDTH + 1, 10_000])
def test_top_k_beyond_the_vocabulary_keeps_all(k: int) -> None:
    assert same(filters.top_k(KINDS["plain"], k), KINDS["plain"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spare", [[], [0], [3, 17, 44]])
@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5])
def test_xtc_is_mlx_lm_s(threshold: float, spare: list[int], kind: str) -> None:
    rows = KINDS[kind]
    tails, heads = mx.zeros((ROWS, 1)) + 0.99, mx.zeros((ROWS, 1)) + 0.01
    theirs = apply_xtc(rows, 1.0, threshold, spare)
    assert same(filters.xtc(rows, heads, 0.5, threshold, spare), theirs)
    assert same(filters.xtc(rows, tails, 0.5, threshold, spare), rows)


CHAINS: Final = (
    Sampling(temperature=0.7),
    Sampling(temperature=1.5, top_p=0.9),
    Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.0),
    Sampling(temperature=0.3, top_p=0.9, top_k=40),
    Sampling(temperature=0.7, min_p=0.05, min_tokens_to_keep=3),
    Sampling(temperature=0.9, top_p=0.6, min_p=0.4, top_k=2),
    Sampling(temperature=0.9, xtc_probability=1.0, xtc_threshold=0.05),
    Sampling(temperature=0.9, top_p=0.9, xtc_probability=1.0, xtc_threshold=0.2, top_k=3),
    Sampling(temperature=1.1, xtc_probability=1.0, xtc_special_tokens=(4, 9), min_p=0.01),
    Sampling(temperature=0.8, top_p=0.0),
)


def scores_of_mlx_lm(monkeypatch: pytest.MonkeyPatch, o: Sampling, rows: mx.array) -> mx.array:
    """What mlx-lm's sampler hands to its last step, which draws."""
    handed: list[mx.array] = []

    def draw(logits: mx.array, temp: float) -> mx.array:
        handed.append(logits * (1 / temp))
        return mx.argmax(logits, axis=-1)

    monkeypatch.setattr(sample_utils, "categorical_sampling", draw)
    sampler = make_sampler(
        temp=o.temperature,
        top_p=o.top_p,
        min_p=o.min_p,
        min_tokens_to_keep=o.min_tokens_to_keep,
        top_k=o.top_k,
        xtc_probability=o.xtc_probability,
        xtc_threshold=o.xtc_threshold,
        xtc_special_tokens=list(o.xtc_special_tokens),
    )
    sampler(rows)
    return handed[0]


@pytest.mark.parametrize("options", CHAINS)
def test_options_together_give_the_scores_of_mlx_lm_s_sampler(
    options: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = KINDS["plain"]
    ours = Distribution(options, 0).log_weights(rows, range(ROWS))
    # Log-probabilities of log-probabilities are themselves, but for the last digit.
    theirs = scores_of_mlx_lm(monkeypatch, options, rows - mx.logsumexp(rows, -1, keepdims=True))
    assert same(ours > -mx.inf, theirs > -mx.inf)
    assert mx.allclose(mx.softmax(ours, -1), mx.softmax(theirs, -1), atol=1e-7).item()


@pytest.mark.parametrize("options", CHAINS)
def test_half_precision_logits_are_worked_in_float32(options: Sampling) -> None:
    half = KINDS["plain"].astype(mx.bfloat16)
    found = Distribution(options, 0).log_weights(half, range(ROWS))
    assert found.dtype == mx.float32
    assert same(found, Distribution(options, 0).log_weights(half.astype(mx.float32), range(ROWS)))


def test_xtc_falls_as_often_as_asked_and_anew_at_each_position() -> None:
    options = Sampling(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.01)
    rows = mx.broadcast_to(KINDS["plain"][:1], (20_000, WIDTH))
    cut = np.array(
        (Distribution(options, 5).log_weights(rows, range(20_000)) == -mx.inf).any(axis=-1)
    )
    assert abs(cut.mean() - 0.3) < 5 * (0.3 * 0.7 / 20_000) ** 0.5
    assert abs((cut[1:] & cut[:-1]).mean() - 0.09) < 5 * (0.09 / 20_000) ** 0.5


PENALTIES: Final = (
    Sampling(repetition_penalty=1.3),
    Sampling(repetition_penalty=0.7, repetition_context_size=3),
    Sampling(presence_penalty=1.5, presence_context_size=5),
    Sampling(presence_penalty=-0.5),
    Sampling(frequency_penalty=0.4, frequency_context_size=7),
    Sampling(logit_bias={3: 2.5, 7: -100.0, 0: float("-inf")}),
    Sampling(
        logit_bias={5: 1.0},
        repetition_penalty=1.8,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    ),
    Sampling(repetition_penalty=0.0, presence_penalty=0.0, frequency_penalty=0.0),
)
TEXTS: Final = ([4], [5, 5, 5, 1], [3, 9, 3, 1, 0, 44, 3, 2, 9, 9, 7] * 4)


def processors_of_mlx_lm(o: Sampling) -> list[Processor]:
    found = make_logits_processors(
        logit_bias=None if o.logit_bias is None else dict(o.logit_bias),
        repetition_penalty=o.repetition_penalty,
        repetition_context_size=o.repetition_context_size,
        presence_penalty=o.presence_penalty,
        presence_context_size=o.presence_context_size,
        frequency_penalty=o.frequency_penalty,
        frequency_context_size=o.frequency_context_size,
    )
    return list(found)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("options", PENALTIES)
def test_penalties_are_mlx_lm_s_and_leave_their_input_alone(
    options: Sampling, dtype: mx.Dtype
) -> None:
    for text in TEXTS:
        tokens = mx.array(text, dtype=mx.uint32)
        before = to_mx(np.random.default_rng(len(text)).normal(size=(1, WIDTH)) * 3, dtype)
        ours, theirs = before, mx.array(before)
        for processor in penalties(options):
            ours = processor(tokens, ours)
        for processor in processors_of_mlx_lm(options):
            theirs = processor(tokens, theirs)
        assert ours.dtype == dtype
        assert same(ours, theirs.astype(dtype))
        fresh = to_mx(np.random.default_rng(len(text)).normal(size=(1, WIDTH)) * 3, dtype)
        assert same(before, fresh)
