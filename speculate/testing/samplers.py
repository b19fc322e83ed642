"""`SamplerTests`: the contracts of `Sampler`, for authors of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, cast

import mlx.core as mx

from speculate.protocols import Sampler
from speculate.testing._sampler_harness import (
    INVALID_DISTRIBUTIONS,
    PROMPT,
    DraftSource,
    MarkovTarget,
    SamplerRun,
    chi_square,
    generate,
    greedy_drafts,
    mislabelled,
    no_drafts,
    sampled_drafts,
    wrong_drafts,
)
from speculate.testing.contract import ContractError, at_step, contract, require

SOURCES: Final[Mapping[str, DraftSource]] = {
    "a lookup": greedy_drafts,
    "wrong drafts": wrong_drafts,
    "a draft model": sampled_drafts(MarkovTarget(2)),
}
"""Sources of drafts by name."""

DEPTHS: Final = (4, 0, 1, 2, 7)
"""Tokens to draft, round by round."""

MIN_P_VALUE: Final = 1e-6
"""A test of frequencies fails below this p-value."""


class SamplerTests(ABC):
    """Tests a sampler: derive a class `Test...` and say how to make a sampler.

    Attributes:
        same_text: The sampler promises the output of plain decoding; otherwise only its
            distribution.
        draws_itself: It draws from its own seed. False around a callable of mlx-lm, which
            draws from `mx.random`.
        reads_text: Its choice depends on earlier tokens, as with penalties.
    """

    same_text: bool = True
    draws_itself: bool = True
    reads_text: bool = False

    @abstractmethod
    def make_sampler(self) -> Sampler:
        """Return a fresh sampler: an equal one every time, seed included."""

    @contract
    def test_a_round_without_drafts_gives_one_token(self) -> None:
        """A round without drafts emits one token of the vocabulary."""
        run = SamplerRun(self.make_sampler(), MarkovTarget())
        for round in range(20):
            with at_step(round, len(run.sequence)):
                run.round(no_drafts(run, 0))
                emitted = len(run.sequence) - len(PROMPT)
                require(emitted == round + 1, f"emits {emitted} tokens in {round + 1} rounds")
                token = run.sequence[-1]
                require(0 <= token < run.target.vocab_size, f"emits {token}, which is no id")

    @contract
    def test_choose_returns_a_token_and_its_distribution(self) -> None:
        """`choose` returns an id, and normalised log-probabilities in which it is possible."""
        run = SamplerRun(self.make_sampler(), MarkovTarget())
        for index in range(6):
            with at_step(0, len(PROMPT) + index):
                logits = run.target.rows(mx.array([index % 8]))
                choice = run.sampler.choose(logits, index)
                require(choice.token.shape == (1,), f"returns tokens {choice.token.shape}")
                if choice.law is not None:
                    shape = choice.law.shape
                    require(shape == logits.shape, f"returns log-probabilities {shape}")
                    total = cast(float, mx.exp(choice.law).sum().item())
                    require(abs(total - 1) < 1e-3, f"probabilities add up to {total}")
                    own = cast(float, choice.law[0, choice.token[0]].item())
                    require(own > -1e30, "draws a token of probability 0")

    @contract
    def test_output_is_that_of_plain_decoding(self, count: int = 600) -> None:
        """Whatever is drafted, the output equals that of plain decoding, or has its distribution.

        Args:
            count: Tokens to generate if distributions are compared.
        """
        if self.same_text:
            self._check_same_output()
        else:
            self._check_same_distribution(count)

    def _check_same_output(self) -> None:
        target, count = MarkovTarget(), 60
        plain = generate(self.make_sampler(), target, count, no_drafts, (0,))
        for name, source in SOURCES.items():
            for depths in ((3,), DEPTHS):
                found = generate(self.make_sampler(), target, count, source, depths)
                if found != plain:
                    pairs = enumerate(zip(found, plain, strict=True))
                    index = next(i for i, (a, b) in pairs if a != b)
                    raise ContractError(
                        f"{found[index]} instead of {plain[index]} with {name}",
                        position=len(PROMPT) + index,
                    )

    def _check_same_distribution(self, count: int) -> None:
        target = MarkovTarget(1, vocab_size=4)
        expected = [_distribution(self.make_sampler(), target, token) for token in range(4)]
        narrow = sampled_drafts(MarkovTarget(2, vocab_size=4))
        sources = {**SOURCES, "a draft model": narrow, "no drafts": no_drafts}
        for name, source in sources.items():
            found = generate(self.make_sampler(), target, count, source, (3, 1, 2))
            p_value = _p_value(found, expected)
            require(
                p_value > MIN_P_VALUE, f"with {name} frequencies have a p-value of {p_value:.1e}"
            )

    @contract
    def test_invalid_draft_distributions_change_nothing(self, count: int = 400) -> None:
        """A draft whose distribution is invalid does not change the output or its distribution.

        Without `same_text`, such a draft is rejected, and the token in its place has the
        target's own distribution.

        Args:
            count: Tokens to generate if distributions are compared.
        """
        if self.same_text:
            self._check_invalid_same_output()
        else:
            self._check_invalid_same_distribution(count)

    def _check_invalid_same_output(self) -> None:
        target, count = MarkovTarget(), 30
        plain = generate(self.make_sampler(), target, count, no_drafts, (0,))
        for name in INVALID_DISTRIBUTIONS:
            source = mislabelled(SOURCES["a draft model"], name)
            found = generate(self.make_sampler(), target, count, source, DEPTHS)
            require(found == plain, f"{found} instead of {plain} where a distribution {name}")

    def _check_invalid_same_distribution(self, count: int) -> None:
        target = MarkovTarget(1, vocab_size=4)
        expected = [_distribution(self.make_sampler(), target, token) for token in range(4)]
        for name in INVALID_DISTRIBUTIONS:
            source = mislabelled(sampled_drafts(MarkovTarget(2, vocab_size=4)), name)
            found = generate(self.make_sampler(), target, count, source, (1, 2))
            p_value = _p_value(found, expected)
            said = f"frequencies have a p-value of {p_value:.1e} where a distribution {name}"
            require(p_value > MIN_P_VALUE, said)

    @contract
    def test_the_same_seed_gives_the_same_output(self) -> None:
        """Two equal samplers used in turn, with equal drafts, emit the same tokens."""
        target = MarkovTarget()
        one, other = (
            SamplerRun(self.make_sampler(), target),
            SamplerRun(self.make_sampler(), target),
        )
        source = SOURCES["a draft model"]
        for round in range(20):
            with at_step(round, len(one.sequence)):
                depth = DEPTHS[round % 5]
                one.round(source(one, depth))
                other.round(source(other, depth))
                last = (one.sequence[-1], other.sequence[-1])
                require(one.sequence == other.sequence, f"{last[0]}, and then {last[1]}")

    @contract
    def test_begin_forgets_the_sequence_before(self) -> None:
        """After another sequence, a sampler emits the tokens of a fresh one.

        The other sequence is left in the middle of a round, as after an error: its last block
        is verified, and not kept.
        """
        if not self.draws_itself:
            return
        target, source = MarkovTarget(), SOURCES["a draft model"]
        sampler = self.make_sampler()
        other = SamplerRun(sampler, MarkovTarget(2))
        for depth in DEPTHS:
            other.round(source(other, depth))
        last_token = mx.array(other.sequence[-1:], dtype=mx.uint32)
        sampler.verify(last_token, no_drafts(other, 0), target.rows(last_token))
        found = generate(sampler, target, 20, source, DEPTHS)
        fresh = generate(self.make_sampler(), target, 20, source, DEPTHS)
        require(found == fresh, f"{found} after another sequence instead of {fresh}")

    @contract
    def test_correct_drafts_are_accepted(self) -> None:
        """Most drafts drawn from the target's own distribution are accepted.

        Skipped with `reads_text`, where earlier tokens change the distribution.
        """
        if self.reads_text:
            return
        target = MarkovTarget()
        run = SamplerRun(self.make_sampler(), target)
        source = sampled_drafts(target)
        for round in range(12):
            with at_step(round, len(run.sequence)):
                run.round(source(run, 3))
        rate = run.accepted / run.drafted
        require(rate > 0.9, f"accepts {rate:.0%} of drafts that are the target's own")

    @contract
    def test_global_random_state_is_unchanged(self) -> None:
        """Noise depends on seed and position; `mx.random` is not used."""
        if not self.draws_itself:
            return
        mx.random.seed(5)
        before = [mx.array(state) for state in cast("list[mx.array]", mx.random.state)]
        generate(self.make_sampler(), MarkovTarget(), 20, SOURCES["a draft model"], DEPTHS)
        after = cast("list[mx.array]", mx.random.state)
        same = all(bool(mx.array_equal(a, b)) for a, b in zip(before, after, strict=True))
        require(same, "draws from mx.random")


def _distribution(sampler: Sampler, target: MarkovTarget, last: int) -> list[float]:
    """Probabilities of the next token after `last`, as `choose` reports them."""
    run = SamplerRun(sampler, target)
    choice = run.sampler.choose(target.rows(mx.array([last])), 0)
    if choice.law is None:
        raise ContractError(
            "choose returns no distribution, and so the output must not depend on drafts"
        )
    return cast("list[float]", mx.exp(choice.law[0]).tolist())


def _p_value(sequence: Sequence[int], expected: Sequence[Sequence[float]]) -> float:
    """P-value of the pairs of tokens in a sequence, given the distribution after each token."""
    followers = Counter(pairwise(sequence))
    times = Counter(sequence[:-1])
    pairs = [
        (float(followers[a, b]), times[a] * probability)
        for a, distribution in enumerate(expected)
        for b, probability in enumerate(distribution)
    ]
    impossible = any(observed and not mean for observed, mean in pairs)
    return 0.0 if impossible else chi_square(pairs)
