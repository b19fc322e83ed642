"""A sampler of one text, over a rule that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Callable

from speculate import Sampling
from speculate.protocols import Sampler
from speculate.sampling.acceptance import AcceptanceRule
from speculate.sampling.filters import Distribution
from speculate.sampling.processors import Processors
from speculate.sampling.sampler import TokenSampler
from speculate.testing.suites import SamplerTests

LAW = Distribution(Sampling(temperature=0.8, seed=3), 3)


class ToyTests(SamplerTests):
    """Proves what `rule` makes."""

    rule: Callable[[Distribution], AcceptanceRule]

    def make_sampler(self) -> Sampler:
        return TokenSampler(type(self).rule(LAW), Processors(()))
