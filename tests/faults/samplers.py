"""Faults in samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mlx.core as mx

from speculate import Sampling
from speculate.protocols import Draft, DraftToken, Sampler, Verification
from speculate.sampling import acceptance
from speculate.sampling.acceptance import (
    AcceptanceRule,
    BlockVerification,
    Coupled,
    ExactMatch,
    Rejection,
    accepted_prefix,
    at,
)
from speculate.sampling.filters import Distribution
from speculate.sampling.processors import Processors
from speculate.sampling.sampler import TokenSampler
from speculate.testing import SamplerTests
from tests.faults.planting import Patch, fault
from tests.sampling.test_conformance import (
    TestBlocks,
    TestCoupled,
    TestGreedyWithPenalties,
    TestRejection,
)

DISTRIBUTION = Distribution(Sampling(temperature=0.8, seed=3), 3)
"""The distribution of every faulty sampler."""


class RuleTests(SamplerTests):
    """Tests a sampler whose acceptance rule is `part`."""

    part: ClassVar[Callable[[Distribution], AcceptanceRule]]

    def make_sampler(self) -> Sampler:
        return TokenSampler(lambda: type(self).part(DISTRIBUTION), Processors(()))


class RejectionTests(RuleTests):
    """Tests a rule that only promises the distribution of plain decoding."""

    same_text = False


def trust_draft_distributions(patch: Patch) -> None:
    """Use the distribution of a draft without validating it."""
    right = acceptance.draft_probabilities

    def trusting(draft: Draft, width: int) -> mx.array:
        logprobs = [distribution for distribution in draft.logprobs if distribution is not None]
        return mx.exp(mx.concatenate(logprobs)) if logprobs else right(draft, width)

    patch.setattr(acceptance, "draft_probabilities", trusting)


@fault(
    "Block verification does not validate the distribution of a draft, and ratios become NaN.",
    caught_by="test_invalid_draft_distributions_change_nothing",
)
class BlockVerificationTrustsDistributions:
    suite = TestBlocks
    plant = staticmethod(trust_draft_distributions)


@fault(
    "Rejection sampling does not validate the distribution of a draft.",
    caught_by="test_invalid_draft_distributions_change_nothing",
)
class RejectionTrustsDistributions:
    suite = TestRejection
    plant = staticmethod(trust_draft_distributions)


@fault(
    "A draft is accepted if the target finds it likely, so that the output depends on it.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class LikelyDraftsAreAccepted:
    suite = RuleTests

    def __init__(self, distribution: Distribution) -> None:
        self._inner = Coupled(distribution)

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return self._inner.choose(logits, position)

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        verified = self._inner.verify(logits, positions, draft)
        k = draft.tokens.shape[0]
        if k == 0:
            return verified
        p = mx.softmax(logits[:k], axis=-1)
        stands = mx.take_along_axis(p, draft.tokens[:, None], axis=-1)[:, 0] > 0.2
        return Verification(accepted_prefix(stands), verified.tokens, logits)


@fault(
    "A draft without a distribution is verified as if drawn from the target's own.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class LookupsAreVerifiedAsSampled(Rejection):  # type: ignore[misc]  # final, and faulty on purpose
    suite = RejectionTests

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        logprobs = draft.logprobs or [mx.log(mx.softmax(row, axis=-1))[None] for row in logits]
        return super().verify(
            logits, positions, Draft(draft.tokens, logprobs[: draft.tokens.shape[0]])
        )


@fault(
    "The first wrong token of a draft is accepted.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class OneTokenTooManyIsAccepted:
    suite = TestCoupled

    @staticmethod
    def plant(patch: Patch) -> None:
        verify = TokenSampler.verify

        def generous(
            self: Any, last_token: mx.array, draft: Draft, logits: mx.array, /
        ) -> Verification:
            found = verify(self, last_token, draft, logits)
            accepted = mx.minimum(found.accepted + 1, draft.tokens.shape[0])
            return Verification(accepted, found.tokens, found.logits)

        patch.setattr(TokenSampler, "verify", generous)


@fault(
    "Noise comes from `mx.random`.",
    caught_by="test_global_random_state_is_unchanged",
)
class NoiseIsGlobal(ExactMatch):
    suite = RuleTests

    def __init__(self, distribution: Distribution) -> None:
        """Take no options: it draws as mlx-lm does."""

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        return mx.random.categorical(logits)


@fault(
    "The noise of a token depends on how many tokens were verified before it.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class NoiseIsKeyedByConsumption(ExactMatch):
    suite = RuleTests

    def __init__(self, distribution: Distribution) -> None:
        self._inner = Coupled(distribution)
        self._used = 0

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return self._inner.choose(logits, position)

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        self._used += len(positions)
        return self._inner.pick(logits, range(self._used - len(positions), self._used))


@fault(
    "The noise that accepts a draft is the noise that drew it.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class DraftAndVerificationShareNoise(Rejection):  # type: ignore[misc]  # final
    suite = RejectionTests

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        # Low ids get low noise.
        shared = (tokens.astype(mx.float32) + coins) / q.shape[-1]
        return super()._verify(p, q, tokens, shared)


@fault(
    "Block verification draws the bonus token from the residual of another drafted token.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class ResidualsAreInTheWrongOrder(BlockVerification):  # type: ignore[misc]  # final
    suite = RejectionTests

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        accepted, residual = super()._verify(p, q, tokens, coins)
        return accepted, residual[::-1]


@fault(
    "For rows of a block, processors see the sequence without its last token.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class ProcessorsSeeOneTokenTooFew:
    suite = TestGreedyWithPenalties

    @staticmethod
    def plant(patch: Patch) -> None:
        processed = TokenSampler._processed

        def short(self: Any, text: mx.array, draft: Draft, logits: mx.array, row: int) -> mx.array:
            return processed(self, text[:-1] if row else text, draft, logits, row)

        patch.setattr(TokenSampler, "_processed", short)


@fault(
    "After a rejected draft, a token is drawn from p instead of the residual of p and q.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class TheResidualIsTheWholeDistribution(Rejection):  # type: ignore[misc]  # final
    suite = RejectionTests

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        accepted, _ = super()._verify(p, q, tokens, coins)
        return accepted, p[: q.shape[0]]


@fault(
    "A draft is accepted although its own distribution gives it no probability.",
    caught_by="test_invalid_draft_distributions_change_nothing",
)
class ImpossibleDraftsAreAccepted(Rejection):  # type: ignore[misc]  # final
    suite = RejectionTests

    def _verify(
        self, p: mx.array, q: mx.array, tokens: mx.array, coins: mx.array
    ) -> tuple[mx.array, mx.array]:
        k = q.shape[0]
        return accepted_prefix(coins * at(q, tokens) < at(p[:k], tokens)), mx.maximum(p[:k] - q, 0)


@fault(
    "Rejected drafts remain in the history that penalties see.",
    caught_by="test_output_is_that_of_plain_decoding",
)
class RejectedTokensStayInTheHistory:
    suite = TestGreedyWithPenalties

    @staticmethod
    def plant(patch: Patch) -> None:
        verify = TokenSampler.verify

        def remembering(
            self: Any, last_token: mx.array, draft: Draft, logits: mx.array, /
        ) -> Verification:
            verification = verify(self, last_token, draft, logits)
            self._history = mx.concatenate([self._history, draft.tokens.astype(mx.uint32)])
            return verification

        patch.setattr(TokenSampler, "verify", remembering)


@fault(
    "A sampler continues the noise of the sequence before.",
    caught_by="test_begin_forgets_the_sequence_before",
)
class RoundsAreCountedAcrossSequences:
    suite = TestRejection

    @staticmethod
    def plant(patch: Patch) -> None:
        begin = TokenSampler.begin

        def continuing(self: Any, history: Any, position: int, stop_tokens: Any, /) -> None:
            rule = self._rule
            begin(self, history, position, stop_tokens)
            self._rule = rule

        patch.setattr(TokenSampler, "begin", continuing)
