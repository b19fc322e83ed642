"""From logits to the law that tokens are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.sampling import filters
from speculate.sampling.noise import key, uniform
from speculate.sampling.options import Sampling

COINS: Final = 0
"""The stream of XTC's coins."""


def log_softmax(logits: mx.array) -> mx.array:
    """Log-probabilities in float32, along the last axis."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@final
@attrs.frozen
class Law:
    """Filters and temperature of one text.

    Attributes:
        options: Of the text; the temperature is above 0.
        seed: Of the text.
    """

    options: Sampling
    seed: int

    def scores(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """What Gumbel noise is added to: log-probabilities after filters over temperature.

        Args:
            logits: `(rows, vocabulary)`, after processors.
            positions: Position in the text of the token that each row is for.

        Returns:
            `(rows, vocabulary)` float32, not normalised; `-inf` for removed tokens.
        """
        o = self.options
        logprobs = log_softmax(logits)
        if 0 < o.top_p < 1:
            logprobs = filters.top_p(logprobs, o.top_p)
        if o.min_p > 0:
            logprobs = filters.min_p(logprobs, o.min_p, o.min_tokens_to_keep)
        if o.xtc_probability > 0:
            coins = uniform([key(self.seed, COINS, position) for position in positions], 1)
            logprobs = filters.xtc(
                logprobs, coins, o.xtc_probability, o.xtc_threshold, o.xtc_special_tokens
            )
        if o.top_k > 0:
            logprobs = filters.top_k(logprobs, o.top_k)
        return logprobs * (1 / o.temperature)
