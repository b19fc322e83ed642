"""A sampler of one text, over a rule that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Callable

from speculate.testing.suites import SamplerTests

from speculate import Sampling
from speculate.protocols import Sampler
from speculate.sampling.acceptance import Rule
from speculate.sampling.filters import Law
from speculate.sampling.processors import Processors
from speculate.sampling.sampler import Pipeline

LAW = Law(Sampling(temperature=0.8, seed=3), 3)


class ToyTests(SamplerTests):
    """Proves what `rule` makes."""

    rule: Callable[[Law], Rule]

    def make_sampler(self) -> Sampler:
        return Pipeline(type(self).rule(LAW), Processors(()))
