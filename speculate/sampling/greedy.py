"""The most likely token, always."""

from __future__ import annotations

from typing import final

import mlx.core as mx

from speculate.protocols import Decision, Draft


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


def leading_matches(tokens: mx.array, drafts: mx.array) -> mx.array:
    """How many drafts stand before the first that differs.

    Args:
        tokens: `(k + 1,)`, what the target chose in each row.
        drafts: `(k,)`.

    Returns:
        `()` int32.
    """
    same = (tokens[: drafts.shape[0]] == drafts).astype(mx.int32)
    return mx.cumprod(same).sum().astype(mx.int32)


@final
class Greedy:
    """Draws nothing: a draft stands while it is what the target would take."""

    def choose(self, logits: mx.array, index: int, /) -> mx.array:
        return most_likely(logits)

    def verify(self, logits: mx.array, draft: Draft, /) -> Decision:
        tokens = most_likely(logits)
        return Decision(accepted=leading_matches(tokens, draft.tokens), tokens=tokens)
