"""Real vocabularies, masks, disjoint distributions, half precision: no NaN, no invalid token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx
import numpy as np
import pytest

from speculate import Sampling
from speculate.protocols import Draft, DraftToken, Sampler, Verification
from speculate.sampling.options import MODES, Mode
from speculate.sampling.sampler import SamplerFactory
from tests.support.table_models import ints, to_mx, to_np

DEPTH: Final = 2
VOCABULARIES: Final = (100, 8193, 151_936, 248_320)


def sampler(sampling: Sampling, seed: int = 5) -> Sampler:
    found = SamplerFactory(sampling, ()).sampler(seed)
    found.begin([1, 2], 2, ())
    return found


def rows(width: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Logits of a block, as peaked as a language model's."""
    generator = np.random.default_rng([width, seed])
    return to_mx(generator.normal(size=(DEPTH + 1, width)) * 3, dtype)


def decide(subject: Sampler, target: mx.array, drafts: mx.array) -> tuple[Draft, Verification]:
    """One round in which the proposer's rows are `drafts`."""
    picked = [subject.choose(drafts[index : index + 1], index) for index in range(DEPTH)]
    draft = Draft(tokens_of(picked), [choice.logprobs for choice in picked])
    return draft, subject.verify(mx.array([3], dtype=mx.uint32), draft, target)


def tokens_of(picked: Sequence[DraftToken]) -> mx.array:
    return mx.concatenate([choice.token for choice in picked]).astype(mx.uint32)


def emitted(draft: Draft, verification: Verification) -> list[int]:
    accepted = cast(int, verification.accepted.item())
    assert 0 <= accepted <= draft.tokens.shape[0]
    assert not mx.isnan(verification.logits).any().item()
    for one in draft.logprobs:
        assert one is None or not mx.isnan(one).any().item()
    return [*ints(draft.tokens)[:accepted], ints(verification.tokens)[accepted]]


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(100, mx.float32), (8193, mx.bfloat16), (151_936, mx.float32), (248_320, mx.bfloat16)],
    ids=["100", "8193", "151936", "248320"],
)
@pytest.mark.parametrize("mode", MODES)
def test_real_vocabularies_are_decided_within_the_filters(
    mode: Mode, width: int, dtype: mx.Dtype
) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.001, mode=mode)
    target = rows(width, 1, dtype)
    drafts = (target + 0.3 * rows(width, 2, dtype)).astype(dtype)
    tokens = emitted(*decide(sampler(sampling), target, drafts))
    for row, token in enumerate(tokens):
        best = np.argsort(-to_np(target[row]), kind="stable")[:20]
        assert token in best


@pytest.mark.parametrize("width", VOCABULARIES)
def test_noise_picks_the_same_token_in_a_wider_padded_vocabulary(width: int) -> None:
    sampling = Sampling(temperature=1.0)
    target, subject = rows(width, 1), sampler(sampling)
    padded = mx.pad(target, [(0, 0), (0, 276)], constant_values=-1e9)
    for row in range(DEPTH + 1):
        one = subject.choose(target[row : row + 1], 0).token
        assert mx.array_equal(one, subject.choose(padded[row : row + 1], 0).token).item()


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "xtc", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_masked_tokens_are_never_drawn_whatever_the_filter(mode: Mode, name: str) -> None:
    options = {
        "none": Sampling(temperature=1.5, mode=mode),
        "top_p": Sampling(temperature=1.5, top_p=0.999, mode=mode),
        "top_k": Sampling(temperature=1.5, top_k=50, mode=mode),
        "min_p": Sampling(temperature=1.5, min_p=1e-6, min_tokens_to_keep=60, mode=mode),
        "xtc": Sampling(temperature=1.5, xtc_probability=1.0, xtc_threshold=0.01, mode=mode),
    }
    target = rows(100, 1)
    legal = mx.arange(100) % 9 == 4
    target = mx.where(legal, target, -mx.inf)
    for seed in range(20):
        subject = sampler(options[name], seed)
        tokens = emitted(*decide(subject, target, rows(100, seed)))
        assert all(token % 9 == 4 for token in tokens)


@pytest.mark.parametrize("mode", MODES)
def test_one_legal_token_is_the_one_that_comes(mode: Mode) -> None:
    target = mx.where(mx.arange(100) == 77, rows(100, 1), -mx.inf)
    for extra in (Sampling(), Sampling(top_p=0.5), Sampling(top_k=3), Sampling(min_p=0.2)):
        sampling = Sampling(
            temperature=0.7, mode=mode, top_p=extra.top_p, top_k=extra.top_k, min_p=extra.min_p
        )
        apart = emitted(*decide(sampler(sampling), target, rows(100, 2)))
        alike = emitted(*decide(sampler(sampling), target, target))
        assert set(apart) == {77}
        assert alike == [77] * (DEPTH + 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_outside_of_the_target_s_support_is_rejected(mode: Mode) -> None:
    target = mx.where(mx.arange(100) < 50, rows(100, 1), -mx.inf)
    for seed in range(30):
        subject = sampler(Sampling(temperature=1.0, mode=mode), seed)
        certain = Draft(mx.array([60, 61], dtype=mx.uint32))
        verification = subject.verify(mx.array([3], dtype=mx.uint32), certain, target)
        tokens = emitted(certain, verification)
        assert len(tokens) == 1
        assert tokens[0] < 50


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_the_filters_remove_is_rejected_even_if_it_is_likely_without_them(
    mode: Mode,
) -> None:
    target = rows(100, 1)
    second = int(np.argsort(-to_np(target[0]))[1])
    subject = sampler(Sampling(temperature=1.0, top_k=1, mode=mode))
    certain = Draft(mx.array([second, 0], dtype=mx.uint32))
    verification = subject.verify(mx.array([3], dtype=mx.uint32), certain, target)
    assert emitted(certain, verification) == [int(to_np(target[0]).argmax())]


@pytest.mark.parametrize("mode", MODES)
def test_equal_distributions_keep_every_draft_and_never_run_out_of_a_residual(mode: Mode) -> None:
    target = rows(8193, 1)
    for seed in range(10):
        subject = sampler(Sampling(temperature=1.0, mode=mode), seed)
        draft, verification = decide(subject, target, target)
        assert emitted(draft, verification)[:DEPTH] == ints(draft.tokens)


@pytest.mark.parametrize("mode", MODES)
def test_nearly_equal_distributions_never_emit_what_has_no_chance(mode: Mode) -> None:
    """The residual of the target's distribution is rounding alone here, and may be all zero."""
    target = mx.where(mx.arange(1000) < 500, rows(1000, 1), -mx.inf)
    for seed in range(30):
        subject = sampler(Sampling(temperature=1.0, mode=mode), seed)
        close = target * (1 + 1e-7)
        assert max(emitted(*decide(subject, target, close))) < 500


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_where_rounding_leaves_nothing_the_target_s_own_distribution_is_drawn_from(
    mode: Mode,
) -> None:
    target = mx.array([[-mx.inf, 0.0, 0.0], [0.0, 0.0, 0.0]])
    # Larger than the target's distribution everywhere, as rounding makes it, only more so.
    one = mx.log(mx.array([[0.0, 0.7, 0.7]]))
    after: list[int] = []
    for seed in range(60):
        subject = sampler(Sampling(temperature=1.0, mode=mode), seed)
        draft = Draft(mx.array([1], dtype=mx.uint32), [one])
        tokens = emitted(draft, subject.verify(mx.array([3], dtype=mx.uint32), draft, target))
        after += tokens if len(tokens) == 1 else []
    assert set(after) == {1, 2}


@pytest.mark.parametrize("wider", [-276, 276])
@pytest.mark.parametrize("mode", MODES)
def test_a_draft_distribution_of_another_width_is_understood(mode: Mode, wider: int) -> None:
    target = rows(1024, 1)
    drafts = rows(1024 + wider, 2)
    drafts[:, 700:] = -1e9
    assert max(emitted(*decide(sampler(Sampling(temperature=1.0, mode=mode)), target, drafts))) < (
        1024
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [1e-4, 1e-2, 100.0])
def test_extreme_temperatures_stay_finite(mode: Mode, temperature: float) -> None:
    target = rows(8193, 1)
    subject = sampler(Sampling(temperature=temperature, mode=mode))
    tokens = emitted(*decide(subject, target, target))
    if temperature < 1e-3:
        assert tokens == np.argmax(to_np(target), axis=-1)[: len(tokens)].tolist()
