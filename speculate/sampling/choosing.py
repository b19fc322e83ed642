"""From options to what chooses the tokens of one text after another."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import final

from speculate.protocols import Sampler
from speculate.sampling.callables import CallableChooser, SamplerCallable
from speculate.sampling.coupled import Coupled
from speculate.sampling.greedy import Greedy
from speculate.sampling.law import Law
from speculate.sampling.options import Sampling
from speculate.sampling.penalties import Processor, penalties
from speculate.sampling.pipeline import Pipeline
from speculate.sampling.processors import Processors
from speculate.sampling.rejection import BlockVerification, Rejection
from speculate.sampling.rules import ByEquality, Rule


@final
class Choosing:
    """Makes a sampler for each text of a decoder.

    Args:
        sampling: Options, or a sampler of mlx-lm.
        processors: The caller's logits processors.

    Raises:
        OptionError: A processor may keep state and cannot be forked.
    """

    def __init__(
        self, sampling: Sampling | SamplerCallable, processors: Sequence[Processor]
    ) -> None:
        self._sampling = sampling
        own = penalties(sampling) if isinstance(sampling, Sampling) else []
        self._processors = Processors(own, processors)

    def begin_text(self) -> tuple[Sampler, int | None]:
        """A sampler for one text, and the seed to have that text again.

        Without a seed in the options a fresh one is drawn. It is `None` where nothing is
        drawn, or by somebody else's sampler.
        """
        seed: int | None = None
        if isinstance(self._sampling, Sampling) and self._sampling.temperature > 0:
            given = self._sampling.seed
            seed = secrets.randbits(63) if given is None else given
        self._processors.restart()
        return self.sampler(seed or 0), seed

    def sampler(self, seed: int) -> Sampler:
        """A sampler that goes on with the processors as they are."""
        return Pipeline(_rule(self._sampling, seed), self._processors)


def _rule(sampling: Sampling | SamplerCallable, seed: int) -> Rule:
    """How the drafts of one text are judged."""
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
