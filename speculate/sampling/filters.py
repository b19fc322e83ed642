"""mlx-lm's filters, row by row: each takes and gives `(rows, vocabulary)` log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx


def top_p(logprobs: mx.array, p: float) -> mx.array:
    """Remove the least likely tokens, as long as the rest has at least `p` together.

    Tokens as likely as the last one kept are kept.
    """
    ascending = mx.sort(logprobs, axis=-1)
    probs = mx.exp(ascending)
    above = mx.cumsum(probs, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + probs[..., :1]
    removed = (above >= p * total).sum(axis=-1, keepdims=True)
    return _below(logprobs, mx.take_along_axis(ascending, removed, axis=-1))


def min_p(logprobs: mx.array, p: float, keep: int) -> mx.array:
    """Remove tokens that are less than `p` times as likely as the most likely one.

    Args:
        logprobs: `(rows, vocabulary)`.
        p: Above 0, at most 1.
        keep: So many of the most likely stay in any case.
    """
    threshold = logprobs.max(axis=-1, keepdims=True) + math.log(p)
    if keep > 1:
        threshold = mx.minimum(threshold, _nth_largest(logprobs, keep))
    return _below(logprobs, threshold)


def top_k(logprobs: mx.array, k: int) -> mx.array:
    """Remove all but `k` tokens. Of equally likely ones at the edge the lower ids stay."""
    if k >= logprobs.shape[-1]:
        return logprobs
    edge = _nth_largest(logprobs, k)
    more = logprobs > edge
    level = logprobs == edge
    room = k - more.sum(axis=-1, keepdims=True)
    keep = more | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= room))
    return mx.where(keep, logprobs, -mx.inf)


def xtc(
    logprobs: mx.array, coins: mx.array, probability: float, threshold: float, spare: Sequence[int]
) -> mx.array:
    """Remove all tokens above `threshold` but the least likely of them, in some rows.

    Args:
        logprobs: `(rows, vocabulary)`, some of them perhaps removed already.
        coins: `(rows, 1)`, uniform: a row loses tokens where its coin is at most
            `probability`.
        probability: How often.
        threshold: Probability above which a token is a top choice.
        spare: Ids that stay.
    """
    probs = mx.softmax(logprobs, axis=-1)
    least = mx.where(probs > threshold, probs, mx.inf).min(axis=-1, keepdims=True)
    removed = probs > least
    if spare:
        removed[..., mx.array(list(spare))] = False
    return mx.where(removed & (coins <= probability), -mx.inf, logprobs)


def _nth_largest(values: mx.array, n: int) -> mx.array:
    """`(rows, 1)`, the `n`-th largest value of each row."""
    n = min(n, values.shape[-1])
    return mx.partition(values, -n, axis=-1)[..., -n : values.shape[-1] - n + 1]


def _below(logprobs: mx.array, threshold: mx.array) -> mx.array:
    return mx.where(logprobs < threshold, -mx.inf, logprobs)
