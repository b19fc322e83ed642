"""How drafts are judged: by equality with the target's own choice, or by a law of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate._mx import log_softmax
from speculate.protocols import Choice, Draft
from speculate.sampling.filters import Law
from speculate.sampling.noise import gumbel, key, uniform


class Chooser(Protocol):
    """Picks the target's own token in each row, so that equal drafts stand.

    Law: what it picks in a row depends on that row and its position alone.
    """

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        """Pick a draft's token at `position` from a proposer's logits `(1, vocabulary)`."""

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        """The target's tokens, `(rows,)`, one for each row of `(rows, vocabulary)`."""


@attrs.frozen(eq=False)
class Judgement:
    """What stands of a draft.

    Attributes:
        accepted: `()` int32.
        tokens: `(rows,)`, what comes after each possible number of accepted drafts.
    """

    accepted: mx.array
    tokens: mx.array


class Rule(Protocol):
    """Decides how many drafts stand, from all rows of a block at once."""

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        """Pick a draft's token at `position` from a proposer's logits `(1, vocabulary)`."""

    def judge(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Judgement:
        """Judge `k` drafts by the target's rows, each for one position.

        Args:
            logits: `(k + 1, vocabulary)`, or `(k, vocabulary)` where nobody asks what comes
                after the last draft.
            positions: One for each row.
            draft: `k` tokens.
        """


def leading(stands: mx.array) -> mx.array:
    """How many of `(k,)` booleans, `k` at least 1, hold before the first that does not."""
    return mx.cumprod(stands.astype(mx.int32)).sum().astype(mx.int32)


class ByEquality:
    """A draft stands while it equals what the target picks: the text is the target's alone.

    Args:
        chooser: What the target picks.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return self._chooser.choose(logits, position)

    def judge(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Judgement:
        tokens = self._chooser.pick(logits, positions)
        if not draft.tokens.shape[0]:
            return Judgement(mx.zeros((), dtype=mx.int32), tokens)
        return Judgement(leading(tokens[: draft.tokens.shape[0]] == draft.tokens), tokens)


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


TOKENS: Final = 1
"""The stream of the noise that decides tokens."""


@final
class Coupled:
    """Picks by shared noise.

    Args:
        law: Filters, temperature and seed of the text.
    """

    def __init__(self, law: Law) -> None:
        self._law = law

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return Choice(self.pick(logits, [position]))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        scores = self._law.scores(logits, positions)
        keys = [key(self._law.seed, TOKENS, position) for position in positions]
        return mx.argmax(scores + gumbel(keys, logits.shape[-1]), axis=-1)


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
        (mx.arange(width) == tokens[index]).astype(mx.float32)[None] if law is None else mx.exp(law)
        for index, law in enumerate(laws)
    ]
    q = mx.concatenate(rows)
    # Infinite or not a number, a sum is not near 1 either.
    usable = (mx.abs(q.sum(axis=-1) - 1) < ROUNDING) & (at(q, tokens) > 0)
    return mx.where(usable[:, None], q, 0)
