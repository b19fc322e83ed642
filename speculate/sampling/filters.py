"""mlx-lm's filters, row by row: each takes and gives `(rows, vocabulary)` log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax
from speculate.sampling.noise import key, uniform
from speculate.sampling.options import Sampling


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


COINS: Final = 0
"""The stream of XTC's coins."""


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
            logprobs = top_p(logprobs, o.top_p)
        if o.min_p > 0:
            logprobs = min_p(logprobs, o.min_p, o.min_tokens_to_keep)
        if o.xtc_probability > 0:
            coins = uniform([key(self.seed, COINS, position) for position in positions], 1)
            logprobs = xtc(
                logprobs, coins, o.xtc_probability, o.xtc_threshold, o.xtc_special_tokens
            )
        if o.top_k > 0:
            logprobs = top_k(logprobs, o.top_k)
        return logprobs * (1 / o.temperature)
