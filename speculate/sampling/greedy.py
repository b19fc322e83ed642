"""The most likely token, always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import mlx.core as mx

from speculate.protocols import Choice


def most_likely(logits: mx.array) -> mx.array:
    """Ids of the most likely tokens, the lowest id on ties.

    Args:
        logits: `(rows, vocabulary)`.

    Returns:
        `(rows,)`. As in mlx-lm the maximum is over log-probabilities in the logits' own
        dtype: in half precision these tie where the logits do not.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.argmax(logprobs, axis=-1)


@final
class Greedy:
    """Draws nothing: a draft stands while it is what the target would take."""

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return Choice(most_likely(logits))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        return most_likely(logits)
