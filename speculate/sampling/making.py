"""From options to what chooses the tokens of one text."""

from __future__ import annotations

from speculate.sampling.callables import CallableChooser, SamplerCallable
from speculate.sampling.coupled import Coupled
from speculate.sampling.greedy import Greedy
from speculate.sampling.law import Law
from speculate.sampling.options import Sampling
from speculate.sampling.rejection import BlockVerification, Rejection
from speculate.sampling.rules import ByEquality, Rule


def make_rule(sampling: Sampling | SamplerCallable, seed: int) -> Rule:
    """How the drafts of one text are judged.

    Args:
        sampling: Options, or a sampler of mlx-lm.
        seed: Of the text.
    """
    if not isinstance(sampling, Sampling):
        return ByEquality(CallableChooser(sampling))
    if sampling.temperature == 0:
        return ByEquality(Greedy())
    law = Law(sampling, seed)
    if sampling.mode == "rejection":
        return Rejection(law)
    if sampling.mode == "block":
        return BlockVerification(law)
    return ByEquality(Coupled(law))
