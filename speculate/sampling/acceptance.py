"""Acceptance rules: exact match with the target's own tokens, or speculative sampling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, final

import mlx.core as mx
from typing_extensions import Protocol

from speculate._mx import log_softmax
from speculate.errors import SpeculateError
from speculate.protocols import Draft, DraftToken, Verification
from speculate.sampling.noise import gumbel, key, uniform
from speculate.sampling.options import Mode

TOKEN_STREAM: Final = 1
"""Noise stream that chooses tokens in mode "coupled"."""

DRAFT_STREAM: Final = 2
ACCEPTANCE_STREAM: Final = 3
RESIDUAL_STREAM: Final = 4
"""Independent noise streams: sharing noise between any two of them would bias the output."""

STREAMS_PER_ROUND: Final = 8
"""Noise streams reserved for one round; the next round uses the following ones."""

SamplerCallable = Callable[[mx.array], mx.array]
"""mlx-lm's sampler: log-probabilities `(1, vocabulary)` -> ids `(1,)`."""


class TokenDistribution(Protocol):
    """The distribution that the tokens of one sequence are drawn from.

    Contract: the distribution of a row depends on that row, its position and the seed alone.
    """

    @property
    def seed(self) -> int:
        """Seed of the noise."""

    def log_weights(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        """Log-probabilities to draw from, up to a constant for each row.

        Applied to the target's logits, and to a proposer's.

        Args:
            logits: `(rows, vocabulary)` of any dtype.
            positions: The sequence position that each row predicts.

        Returns:
            `(rows, vocabulary)` float32, not normalised; `-inf` for removed tokens.
        """


class AcceptanceRule(Protocol):
    """Decides how many drafts are accepted, from all rows of a block at once.

    Made for one sequence: it may count the rounds.
    """

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        """Choose a drafted token at `position` from a proposer's logits `(1, vocabulary)`."""

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        """Verify `k` drafts against the target's rows.

        Args:
            logits: `(k + 1, vocabulary)`, or `(k, vocabulary)` if the token after the last
                draft is not needed.
            positions: The sequence position that each row predicts.
            draft: `k` tokens.
        """


def accepted_prefix(accepted: mx.array) -> mx.array:
    """Number of leading true values, `()` int32, of `(k,)` booleans with `k` at least 1."""
    return mx.cumprod(accepted.astype(mx.int32)).sum().astype(mx.int32)


def most_likely(logits: mx.array) -> mx.array:
    """Ids of the most likely tokens, `(rows,)`; the lowest id on ties.

    As in mlx-lm, the maximum is taken over log-probabilities in the dtype of the logits: in half
    precision these may tie where the logits do not.
    """
    return mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)


class ExactMatch(ABC):
    """Accepts drafts while they equal the target's own tokens, which alone form the output."""

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return DraftToken(most_likely(logits))

    @abstractmethod
    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        """The target's tokens, `(rows,)` ids, one for each row of `(rows, vocabulary)`.

        Contract: the token picked for a row depends on that row and its position alone.
        """

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        tokens = self.pick(logits, positions)
        if not draft.tokens.shape[0]:
            return Verification(mx.zeros((), dtype=mx.int32), tokens, logits)
        matches = tokens[: draft.tokens.shape[0]] == draft.tokens
        return Verification(accepted_prefix(matches), tokens, logits)


@final
class Greedy(ExactMatch):
    """Picks the most likely token."""

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        return most_likely(logits)


@final
class Coupled(ExactMatch):
    """Draws tokens from a distribution, with noise that target and proposers share."""

    def __init__(self, distribution: TokenDistribution) -> None:
        self._distribution = distribution

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return DraftToken(self.pick(logits, [position]))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        weights = self._distribution.log_weights(logits, positions)
        keys = [key(self._distribution.seed, TOKEN_STREAM, position) for position in positions]
        return mx.argmax(weights + gumbel(keys, logits.shape[-1]), axis=-1)


@final
class CallablePicker(ExactMatch):
    """Calls an mlx-lm sampler for each row, in order. It draws by itself: seeds have no effect."""

    def __init__(self, sampler: SamplerCallable) -> None:
        self._sampler = sampler

    def __repr__(self) -> str:
        return repr(self._sampler)

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return mx.concatenate([self._draw(logprobs[row : row + 1]) for row in range(len(logprobs))])

    def _draw(self, logprobs: mx.array) -> mx.array:
        token: object = self._sampler(logprobs)
        if not isinstance(token, mx.array):
            found = type(token).__name__
        elif token.size == 1 and mx.issubdtype(token.dtype, mx.integer):
            return token.reshape(1)
        else:
            found = f"{token.shape} {token.dtype}"
        raise SpeculateError(f"the sampler {self._sampler!r} returned {found}, not (1,) ids")


class _SpeculativeSampling(ABC):
    """Base of the rules that verify drafts by their distributions, with fresh noise per round."""

    def __init__(self, distribution: TokenDistribution) -> None:
        self._distribution = distribution
        # After a rejection another draft is made at the same position. The noise of that
        # position has influenced the output already, so each round has noise of its own.
        self._round = 0

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        weights = self._distribution.log_weights(logits, [position])
        noise = gumbel([self._key(DRAFT_STREAM, position)], logits.shape[-1])
        return DraftToken(mx.argmax(weights + noise, axis=-1), log_softmax(weights))

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        p = mx.softmax(self._distribution.log_weights(logits, positions), axis=-1)
        if k := draft.tokens.shape[0]:
            q = draft_probabilities(draft, p.shape[-1])
            keys = [self._key(ACCEPTANCE_STREAM, position) for position in positions[:k]]
            accepted, residual = self._verify(p, q, draft.tokens, uniform(keys, 1)[:, 0])
            weights = mx.concatenate([residual, p[k:]])
        else:
            accepted, weights = mx.zeros((), dtype=mx.int32), p
        verified = Verification(accepted, self._draw(weights, p, positions), logits)
        self._round += 1
        return verified

    @abstractmethod
    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Verify `k` drafts `tokens`, at least 1, with a uniform coin each.

        `p`, `(rows, vocabulary)`, are the target's probabilities; `q`, `(k, vocabulary)`, those of
        `draft_probabilities`: a draft whose row is zero must be rejected with all later ones, and
        the token in its place has distribution p.

        Returns:
            The number of accepted drafts, `()` int32, and the weights `(k, vocabulary)` of the
            bonus token for each number of accepted drafts below `k`.
        """

    def _key(self, stream: int, position: int) -> tuple[int, int]:
        return key(self._distribution.seed, stream + STREAMS_PER_ROUND * self._round, position)

    def _draw(self, weights: mx.array, otherwise: mx.array, positions: Sequence[int]) -> mx.array:
        """Draw from each row of `weights`, or of `otherwise` if that row is all zero."""
        some = weights.sum(axis=-1, keepdims=True) > 0
        weights = mx.where(some, weights, otherwise)
        keys = [self._key(RESIDUAL_STREAM, position) for position in positions]
        return mx.argmax(mx.log(weights) + gumbel(keys, weights.shape[-1]), axis=-1)


@final
class Rejection(_SpeculativeSampling):
    """Rejection sampling: accepts a draft d with probability min(1, p(d) / q(d)).

    Leviathan, Kalman and Matias, arXiv 2211.17192.
    """

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        drawn = at(q, tokens)
        accepted = (drawn > 0) & (coins * drawn < at(p[: q.shape[0]], tokens))
        return accepted_prefix(accepted), mx.maximum(p[: q.shape[0]] - q, 0)


@final
class BlockVerification(_SpeculativeSampling):
    """Verifies the drafts of a block jointly, and accepts the longest prefix that passes.

    Sun et al., arXiv 2403.10444.
    """

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        k = q.shape[0]
        drawn = at(q, tokens)
        # Ratios above 1 count as 1, but infinity times a prefix of weight 0 would be NaN.
        ratios = mx.where(drawn > 0, mx.minimum(at(p[:k], tokens) / drawn, 1e30), 0)
        prefix = [mx.ones(())]
        for index in range(k):
            prefix.append(mx.minimum(prefix[-1] * ratios[index], 1))
        weight = mx.stack(prefix)
        # What is left of the target's probability after each prefix, less that of the next draft.
        residual = mx.maximum(weight[:k, None] * p[:k] - q, 0)
        left = mx.concatenate([residual[1:].sum(axis=-1), mx.zeros((1,))])
        passing = weight[1:]
        last = mx.arange(k) == k - 1
        chance = mx.where(last, passing, left / mx.maximum(left + 1 - passing, 1e-30))
        # The longest prefix whose coin passes; 0 if none does.
        longest = mx.where(coins <= chance, mx.arange(1, k + 1), 0).max()
        return longest.astype(mx.int32), residual


def acceptance_rule(distribution: TokenDistribution, mode: Mode = "coupled") -> AcceptanceRule:
    """Make the rule that verifies the drafts of one sequence: it is not for another one.

    Its noise depends on the seed and the position, and in the modes "rejection" and "block" also
    on the number of rounds before.

    Args:
        distribution: Of the sequence's tokens, with its seed.
        mode: See `Sampling`.
    """
    if mode == "rejection":
        return Rejection(distribution)
    if mode == "block":
        return BlockVerification(distribution)
    return Coupled(distribution)


def at(rows: mx.array, ids: mx.array) -> mx.array:
    """`rows[i, ids[i]]`, `(k,)`."""
    return mx.take_along_axis(rows, ids[:, None], axis=-1)[:, 0]


def draft_probabilities(draft: Draft, width: int) -> mx.array:
    """Probabilities that the drafts were drawn with, `(k, width)` float32.

    A draft that was not drawn at random has probability 1. The row of a draft without a valid
    distribution (see `Draft`) is 0, since the true one is unknown. Such a draft is always
    rejected, so that the target's own distribution is exact for the token in its place.
    """
    rows = []
    for index, row in enumerate(draft.logprobs or [None] * draft.tokens.shape[0]):
        if row is None:
            rows.append((mx.arange(width) == draft.tokens[index]).astype(mx.float32)[None])
        else:
            # A draft model's vocabulary may be padded differently.
            missing = max(0, width - row.shape[-1])
            rows.append(mx.pad(mx.exp(row[:, :width]), [(0, 0), (0, missing)]))
    q = mx.concatenate(rows)
    # In float32 the sum over a large vocabulary may deviate. An infinite or NaN sum never passes.
    usable = (mx.abs(q.sum(axis=-1) - 1) < 1e-3) & (at(q, draft.tokens) > 0)
    return mx.where(usable[:, None], q, 0)
