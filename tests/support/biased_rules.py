"""Rules with the mistakes that engines ship. The tests of the right rules must refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx
from typing_extensions import override

from speculate import Sampling
from speculate._mx import log_softmax
from speculate.protocols import Draft, DraftToken, Verification
from speculate.sampling.acceptance import (
    AcceptanceRule,
    BlockVerification,
    Rejection,
    accepted_prefix,
    at,
    draft_probabilities,
    most_likely,
)
from speculate.sampling.filters import Distribution
from speculate.sampling.noise import gumbel, key, uniform

DRAWS: Final = 2
COINS: Final = 3
"""Streams of randomness, as in the right rules."""


class PlainRejection:
    """The right rule for one round, in parts that can be got wrong one by one.

    Args:
        sampling: Options of the text.
        seed: Of the text.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self._distribution = Distribution(sampling, seed)

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        scores = self._distribution.log_weights(logits, [position])
        token = mx.argmax(scores + self.noise(DRAWS, [position], logits.shape[-1]), axis=-1)
        return DraftToken(token, self.draft_distribution(logits, scores))

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        p = mx.softmax(self._distribution.log_weights(logits, positions), axis=-1)
        k = draft.tokens.shape[0]
        q = draft_probabilities(draft, p.shape[-1])
        coins = self.coins(positions[:k], draft.tokens, p.shape[-1])
        accepted = accepted_prefix(coins * at(q, draft.tokens) < at(p[:k], draft.tokens))
        own = self.after_drafts(mx.maximum(p[:k] - q, 0), p[k:], positions)
        return Verification(accepted, own, logits)

    def draft_distribution(self, logits: mx.array, scores: mx.array) -> mx.array:
        return log_softmax(scores)

    def noise(self, stream: int, positions: Sequence[int], width: int) -> mx.array:
        return gumbel([key(self._distribution.seed, stream, place) for place in positions], width)

    def coins(self, positions: Sequence[int], drafts: mx.array, width: int) -> mx.array:
        return uniform([key(self._distribution.seed, COINS, place) for place in positions], 1)[:, 0]

    def after_drafts(self, rest: mx.array, bonus: mx.array, positions: Sequence[int]) -> mx.array:
        """The token after each number of accepted drafts."""
        weights = mx.concatenate([rest, bonus])
        noise = self.noise(self.rest_stream(), positions, weights.shape[-1])
        return mx.argmax(mx.log(weights) + noise, axis=-1)

    def rest_stream(self) -> int:
        return 4


@final
class CoinFromTheDraft(PlainRejection):
    """Accepts with the number that the draft was drawn with."""

    @override
    def coins(self, positions: Sequence[int], drafts: mx.array, width: int) -> mx.array:
        keys = [key(self._distribution.seed, DRAWS, place) for place in positions]
        return at(uniform(keys, width), drafts)


@final
class RestFromTheDraft(PlainRejection):
    """Draws the token after a rejection with the draft's noise."""

    @override
    def rest_stream(self) -> int:
        return DRAWS


@final
class DistributionBeforeFilters(PlainRejection):
    """Says that drafts were drawn from the distribution before its filters."""

    @override
    def draft_distribution(self, logits: mx.array, scores: mx.array) -> mx.array:
        return log_softmax(logits / self._distribution.options.temperature)


@final
class SoftDistributionOfGreedyDrafts(PlainRejection):
    """Drafts the most likely token, and says that it was drawn."""

    @override
    def noise(self, stream: int, positions: Sequence[int], width: int) -> mx.array:
        noise = super().noise(stream, positions, width)
        return mx.zeros_like(noise) if stream == DRAWS else noise


@final
class AnyDistributionIsBelieved(PlainRejection):
    """Judges by whatever a draft says that it was drawn from."""

    @override
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        p = mx.softmax(self._distribution.log_weights(logits, positions), axis=-1)
        k = draft.tokens.shape[0]
        q = mx.exp(
            mx.concatenate(
                [distribution for distribution in draft.logprobs if distribution is not None]
            )
        )
        coins = self.coins(positions[:k], draft.tokens, p.shape[-1])
        accepted = accepted_prefix(coins * at(q, draft.tokens) < at(p[:k], draft.tokens))
        return Verification(
            accepted, self.after_drafts(mx.maximum(p[:k] - q, 0), p[k:], positions), logits
        )


@final
class RestNotRenormalised(PlainRejection):
    """Draws from the residual of the target's distribution as if it summed to one."""

    @override
    def after_drafts(self, rest: mx.array, bonus: mx.array, positions: Sequence[int]) -> mx.array:
        below = mx.cumsum(mx.concatenate([rest, bonus]), axis=-1)
        numbers = uniform([key(self._distribution.seed, 4, place) for place in positions], 1)
        return mx.minimum((below < numbers).sum(axis=-1), below.shape[-1] - 1)


@final
class RestIsTheTarget(PlainRejection):
    """Draws from the target's whole distribution after a rejection."""

    @override
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        verified = super().verify(logits, positions, draft)
        p = mx.softmax(self._distribution.log_weights(logits, positions), axis=-1)
        k = draft.tokens.shape[0]
        return Verification(verified.accepted, self.after_drafts(p[:k], p[k:], positions), logits)


@final
class BonusFromTheWrongRow(PlainRejection):
    """Draws the token after the last draft from the row before."""

    @override
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        return super().verify(mx.concatenate([logits[:-1], logits[-2:-1]]), positions, draft)


@final
class AcceptIfMostLikely(PlainRejection):
    """Accepts what the target finds most likely, and emits that otherwise."""

    @override
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        best = most_likely(logits)
        return Verification(accepted_prefix(best[:-1] == draft.tokens), best, logits)


@final
class SameNoiseAtEachPlace(PlainRejection):
    """Forgets the position when it draws for the target."""

    @override
    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        tokens = mx.argmax(
            self._distribution.log_weights(logits, positions)
            + self.noise(DRAWS, [0 * place for place in positions], logits.shape[-1]),
            axis=-1,
        )
        return Verification(accepted_prefix(tokens[:-1] == draft.tokens), tokens, logits)


def same_noise_each_round(sampling: Sampling, seed: int) -> AcceptanceRule:
    """The right rules, but with no noise of its own for each round."""
    rule = Rejection if sampling.mode == "rejection" else BlockVerification
    return _Frozen(rule(Distribution(sampling, seed)))


@final
class _Frozen:
    def __init__(self, rule: Rejection | BlockVerification) -> None:
        self._rule = rule

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return self._rule.choose(logits, position)

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        verified = self._rule.verify(logits, positions, draft)
        self._rule._round = 0
        return verified
