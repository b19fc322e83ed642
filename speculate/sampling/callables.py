"""mlx-lm's sampler callables: drawn once a row, accepted by equality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import mlx.core as mx

from speculate.protocols import Choice
from speculate.sampling.greedy import most_likely

SamplerCallable = Callable[[mx.array], mx.array]
"""mlx-lm's sampler: log-probabilities `(1, vocabulary)` -> ids `(1,)`."""


@final
class CallableChooser:
    """Asks a sampler for each row, in order. Its law is kept; seeds promise nothing.

    Args:
        sampler: As `mlx_lm.sample_utils.make_sampler` makes them.
    """

    def __init__(self, sampler: SamplerCallable) -> None:
        self._sampler = sampler

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return Choice(most_likely(logits))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        rows = range(logits.shape[0])
        return mx.concatenate([self._sampler(logprobs[row : row + 1]).reshape(1) for row in rows])
