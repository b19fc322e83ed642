"""mlx-lm's filters: each maps `(rows, vocabulary)` log-probabilities to the same, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax
from speculate.sampling.noise import key, uniform
from speculate.sampling.options import Sampling

XTC_STREAM: Final = 0
"""Noise stream of XTC's coins."""


def top_p(logprobs: mx.array, p: float) -> mx.array:
    """Keep the most likely tokens whose total probability is at least `p`.

    Tokens tied with the last one kept are kept, too.
    """
    ascending = mx.sort(logprobs, axis=-1)
    probs = mx.exp(ascending)
    above = mx.cumsum(probs, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + probs[..., :1]
    removed = (above >= p * total).sum(axis=-1, keepdims=True)
    return _below(logprobs, mx.take_along_axis(ascending, removed, axis=-1))


def min_p(logprobs: mx.array, p: float, keep: int) -> mx.array:
    """Keep the `keep` most likely tokens, and those at least `p` times as likely as the first."""
    threshold = logprobs.max(axis=-1, keepdims=True) + math.log(p)
    if keep > 1:
        threshold = mx.minimum(threshold, _nth_largest(logprobs, keep))
    return _below(logprobs, threshold)


def top_k(logprobs: mx.array, k: int) -> mx.array:
    """Keep the `k` most likely tokens; the lower ids on ties."""
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
    """Remove all tokens likelier than `threshold` except the least likely one of these.

    Only rows whose coin, `(rows, 1)` uniform, is at most `probability` lose tokens. The ids in
    `spare` are never removed.
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


@final
@attrs.frozen
class Distribution:
    """The `TokenDistribution` of `Sampling`: the filters, then a temperature above 0."""

    options: Sampling
    seed: int

    def log_weights(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        o = self.options
        logprobs = log_softmax(logits)
        if 0 < o.top_p < 1:
            logprobs = top_p(logprobs, o.top_p)
        if o.min_p > 0:
            logprobs = min_p(logprobs, o.min_p, o.min_tokens_to_keep)
        if o.xtc_probability > 0:
            coins = uniform([key(self.seed, XTC_STREAM, position) for position in positions], 1)
            spare = o.xtc_special_tokens
            logprobs = xtc(logprobs, coins, o.xtc_probability, o.xtc_threshold, spare)
        if o.top_k > 0:
            logprobs = top_k(logprobs, o.top_k)
        return logprobs * (1 / o.temperature)
