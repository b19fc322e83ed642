"""Accepting by the ratio of the two laws: more drafts stand, the text depends on them.

Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
arXiv 2211.17192, algorithm 1; and for whole blocks Sun et al., "Block Verification
Accelerates Speculative Decoding", arXiv 2403.10444, algorithm 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx

from speculate.protocols import Choice, Draft
from speculate.sampling.law import Law, log_softmax
from speculate.sampling.noise import gumbel, key, uniform
from speculate.sampling.rules import Judgement, leading

DRAFTS: Final = 2
ACCEPTANCE: Final = 3
RESIDUAL: Final = 4
"""Three independent streams: sharing noise between any two of them would bias the text."""

STREAMS: Final = 8
"""Streams of one round; the next round's come behind them."""

ROUNDING: Final = 1e-3
"""How far from 1 the probabilities of a law may add up, in float32 over a large vocabulary."""


class _Drawing(ABC):
    """What both rules share: drafts with their laws, and noise that is fresh each round."""

    def __init__(self, law: Law) -> None:
        self._law = law
        # A draft that fell is drafted anew at the same position. Its noise has had a say
        # already, so each round has noise of its own.
        self._round = 0

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        scores = self._law.scores(logits, [position])
        noise = gumbel([self._key(DRAFTS, position)], logits.shape[-1])
        return Choice(mx.argmax(scores + noise, axis=-1), log_softmax(scores))

    def _key(self, stream: int, position: int) -> tuple[int, int]:
        return key(self._law.seed, stream + STREAMS * self._round, position)

    def judge(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Judgement:
        p = mx.softmax(self._law.scores(logits, positions), axis=-1)
        k = draft.tokens.shape[0]
        if k == 0:
            judged = Judgement(mx.zeros((), dtype=mx.int32), self._draw(p, p, positions))
        else:
            q = draft_laws(draft, p.shape[-1])
            keys = [self._key(ACCEPTANCE, position) for position in positions[:k]]
            accepted, residual = self._judge(p, q, draft.tokens, uniform(keys, 1)[:, 0])
            judged = Judgement(
                accepted, self._draw(mx.concatenate([residual, p[k:]]), p, positions)
            )
        self._round += 1
        return judged

    @abstractmethod
    def _judge(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Judge `k` drafts, at least 1.

        Args:
            p: `(rows, vocabulary)`, the target's law in each row.
            q: `(k, vocabulary)`, the law that each draft was drawn from. Where a draft has no
                probability in it, its whole row is 0: then neither it nor what is behind it may
                stand, and the token in its place has the law p.
            tokens: `(k,)` drafts.
            coins: `(k,)`, uniform.

        Returns:
            How many stand, `()` int32; and for each number below `k` the weights that the
            token behind is drawn with, `(k, vocabulary)`.
        """

    def _draw(self, weights: mx.array, otherwise: mx.array, positions: Sequence[int]) -> mx.array:
        """Draw from each row of `weights`, or of `otherwise` where a row is all zero."""
        some = weights.sum(axis=-1, keepdims=True) > 0
        weights = mx.where(some, weights, otherwise)
        keys = [self._key(RESIDUAL, position) for position in positions]
        return mx.argmax(mx.log(weights) + gumbel(keys, weights.shape[-1]), axis=-1)


@final
class Rejection(_Drawing):
    """Each draft d stands with probability min(1, p(d) / q(d)).

    Args:
        law: Filters, temperature and seed of the text.
    """

    def _judge(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        drawn = at(q, tokens)
        stands = (drawn > 0) & (coins * drawn < at(p[: q.shape[0]], tokens))
        return leading(stands), mx.maximum(p[: q.shape[0]] - q, 0)


@final
class BlockVerification(_Drawing):
    """Judges the drafts of a block together, and accepts the longest prefix that stands.

    Args:
        law: Filters, temperature and seed of the text.
    """

    def _judge(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        k = q.shape[0]
        drawn = at(q, tokens)
        # More than 1 counts as 1, but infinity times a prefix of weight 0 would be no number.
        ratios = mx.where(drawn > 0, mx.minimum(at(p[:k], tokens) / drawn, 1e30), 0)
        prefix = [mx.ones(())]
        for index in range(k):
            prefix.append(mx.minimum(prefix[-1] * ratios[index], 1))
        weight = mx.stack(prefix)
        # What is left of the target's law after a prefix, beyond what the next draft covers.
        residual = mx.maximum(weight[:k, None] * p[:k] - q, 0)
        left = mx.concatenate([residual[1:].sum(axis=-1), mx.zeros((1,))])
        return _longest(coins, weight[1:], left), residual


def _longest(coins: mx.array, weight: mx.array, left: mx.array) -> mx.array:
    """The longest prefix whose coin falls right; 0 if none does."""
    k = coins.shape[0]
    last = mx.arange(k) == k - 1
    chance = mx.where(last, weight, left / mx.maximum(left + 1 - weight, 1e-30))
    return mx.where(coins <= chance, mx.arange(1, k + 1), 0).max().astype(mx.int32)


def at(rows: mx.array, ids: mx.array) -> mx.array:
    """`rows[i, ids[i]]`, `(k,)`."""
    return mx.take_along_axis(rows, ids[:, None], axis=-1)[:, 0]


def draft_laws(draft: Draft, width: int) -> mx.array:
    """Probabilities `(k, width)` float32 that the drafts were really drawn with.

    A draft that was certain has all its probability on itself. Where a law is none, because it
    is not finite, does not add up to 1 or rules out the token that came with it, nobody knows
    what the draft was drawn from: the row is 0. Such a draft is rejected whatever it is, and so
    the target's own law behind it is the exact one.
    """
    tokens = draft.tokens
    laws = draft.laws or [None] * tokens.shape[0]
    rows = [
        (mx.arange(width) == tokens[index]).astype(mx.float32)[None]
        if law is None
        else _fitted(mx.exp(law), width)
        for index, law in enumerate(laws)
    ]
    q = mx.concatenate(rows)
    # Infinite or not a number, a sum is not near 1 either.
    usable = (mx.abs(q.sum(axis=-1) - 1) < ROUNDING) & (at(q, tokens) > 0)
    return mx.where(usable[:, None], q, 0)


def _fitted(law: mx.array, width: int) -> mx.array:
    """A draft model's vocabulary may be padded differently."""
    missing = width - law.shape[-1]
    return law[:, :width] if missing <= 0 else mx.pad(law, [(0, 0), (0, missing)])
