"""Every way of choosing tokens, against the contracts of the conformance kit."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx

from speculate import Sampling
from speculate.protocols import Sampler
from speculate.sampling.sampler import SamplerFactory
from speculate.testing import SamplerTests

ALL = Sampling(
    temperature=0.9,
    top_p=0.95,
    top_k=6,
    min_p=0.01,
    xtc_probability=0.3,
    xtc_threshold=0.1,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    seed=3,
)


class Pipelines(SamplerTests):
    """Samplers as a decoder makes them from options."""

    options: ClassVar[Sampling]

    def make_sampler(self) -> Sampler:
        return SamplerFactory(self.options, ()).begin_sequence()[0]


class TestGreedy(Pipelines):
    options = Sampling()


class TestGreedyWithPenalties(Pipelines):
    options = Sampling(repetition_penalty=1.5, frequency_penalty=0.5)
    reads_text = True


class TestCoupled(Pipelines):
    options = Sampling(temperature=0.8, seed=3)


class TestCoupledWithAllFilters(Pipelines):
    options = ALL
    reads_text = True


class TestRejection(Pipelines):
    options = Sampling(temperature=0.8, seed=3, mode="rejection")
    same_text = False


class TestBlocks(Pipelines):
    options = Sampling(temperature=0.8, top_p=0.9, seed=3, mode="block")
    same_text = False


def hottest(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


class TestCallable(SamplerTests):
    """A sampler of mlx-lm, which draws nothing."""

    def make_sampler(self) -> Sampler:
        return SamplerFactory(hottest, ()).begin_sequence()[0]


def counting(tokens: mx.array, logits: mx.array) -> mx.array:
    """A processor that looks at the whole text."""
    return mx.where(mx.arange(logits.shape[-1]) == tokens.sum() % 8, logits + 3, logits)


class TestProcessors(SamplerTests):
    """Functions of the caller's, which see each row once it is text."""

    reads_text = True

    def make_sampler(self) -> Sampler:
        return SamplerFactory(Sampling(temperature=0.7, seed=1), (counting,)).begin_sequence()[0]
