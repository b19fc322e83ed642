"""The example of a sampler, proved by the tests that its author would inherit."""

from examples.top_n_sigma import TopNSigma
from speculate.protocols import Sampler
from speculate.testing import SamplerTests


class TestCoupled(SamplerTests):
    def make_sampler(self) -> Sampler:
        return TopNSigma(n=1.5, temperature=0.8, seed=3)


class TestRejection(SamplerTests):
    same_text = False

    def make_sampler(self) -> Sampler:
        return TopNSigma(n=1.5, temperature=0.8, seed=3, mode="rejection")
