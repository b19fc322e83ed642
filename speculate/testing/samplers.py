"""`SamplerTests`: the contracts of `Sampler`, for authors of samplers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax, to_ints
from speculate.protocols import Draft, DraftToken, Sampler
from speculate.testing.contract import ContractError, at_step, contract, require, same_random_state
from speculate.testing.lossless import DEPTHS

PROMPT: Final = (1, 3, 2, 1, 0)
"""Ids that every sequence starts with."""

DraftSource = Callable[["SamplerRun", int], Draft]
"""Drafts that many tokens after the sequence of a run."""

Mislabel = Callable[[mx.array, mx.array], mx.array]
"""Replaces the log-probabilities `(1, vocabulary)` given for a drafted token `(1,)`."""


def markov_logits(seed: int = 1, vocab_size: int = 8) -> mx.array:
    """Logits of a model whose next token depends on the last token alone, one row for each."""
    return 1.5 * mx.random.normal((vocab_size, vocab_size), key=mx.random.key(seed))


@final
@attrs.define(eq=False)
class SamplerRun:
    """A sequence, prompt included, that a sampler extends round by round; and its acceptance."""

    sampler: Sampler
    logits: mx.array
    sequence: list[int] = attrs.Factory(lambda: list(PROMPT))
    drafted: int = 0
    accepted: int = 0

    def __attrs_post_init__(self) -> None:
        self.sampler.begin(list(PROMPT[:-1]), len(PROMPT) - 1, frozenset())

    def round(self, draft: Draft) -> None:
        """Have the sampler verify a draft, and append what it accepts and its own token."""
        last_token = mx.array(self.sequence[-1:], dtype=mx.uint32)
        k = draft.tokens.shape[0]
        fed = mx.concatenate([last_token, draft.tokens.astype(mx.uint32)])
        outcome = self.sampler.verify(last_token, draft, self.logits[fed])
        accepted = cast(int, outcome.accepted.item())
        require(0 <= accepted <= k, f"accepts {accepted} of {k} drafted tokens")
        own = to_ints(outcome.tokens)
        enough = len(own) > accepted
        require(enough, f"returns {len(own)} tokens, and no bonus token for {accepted} accepted")
        shape = outcome.logits.shape
        fits = len(shape) == 2 and shape[0] > accepted and shape[1] == self.logits.shape[1]
        require(fits, f"returns logits {shape} for {accepted} accepted tokens")
        self.sampler.commit(fed[: 1 + accepted])
        self.sequence += [*to_ints(draft.tokens)[:accepted], own[accepted]]
        self.drafted += k
        self.accepted += accepted


def generate(
    sampler: Sampler, target: mx.array, count: int, source: DraftSource, depths: Sequence[int]
) -> list[int]:
    """Generate `count` ids with drafts of these depths, repeated."""
    run = SamplerRun(sampler, target)
    for round, depth in enumerate(cycle(depths)):
        if len(run.sequence) >= len(PROMPT) + count:
            break
        with at_step(round, len(run.sequence)):
            run.round(source(run, depth))
    return run.sequence[len(PROMPT) : len(PROMPT) + count]


def no_drafts(run: SamplerRun, depth: int) -> Draft:
    """Draft nothing: plain decoding."""
    return Draft(mx.zeros((0,), dtype=mx.uint32))


def drafts_of(pick: Callable[[mx.array], mx.array]) -> DraftSource:
    """Drafts without distributions, as a lookup makes: `pick` takes each token from logits."""

    def source(run: SamplerRun, depth: int) -> Draft:
        tokens, last = [], run.sequence[-1]
        for _ in range(depth):
            last = cast(int, pick(run.logits[last]).item())
            tokens.append(last)
        return Draft(mx.array(tokens, dtype=mx.uint32))

    return source


def sampled_drafts(model: mx.array) -> DraftSource:
    """Drafts that the sampler draws from another model's logits."""

    def source(run: SamplerRun, depth: int) -> Draft:
        if not depth:
            return no_drafts(run, 0)
        last_token = mx.array(run.sequence[-1:], dtype=mx.uint32)
        choices: list[DraftToken] = []
        for index in range(depth):
            choices.append(run.sampler.choose(model[last_token], index))
            last_token = choices[-1].token
        tokens = [choice.token for choice in choices]
        return Draft(mx.concatenate(tokens), [choice.logprobs for choice in choices])

    return source


def _with_first(value: float) -> Mislabel:
    return lambda logprobs, _: mx.where(mx.arange(logprobs.shape[1]) == 0, value, logprobs)


def _without_token(logprobs: mx.array, token: mx.array) -> mx.array:
    return log_softmax(mx.where(mx.arange(logprobs.shape[1]) == token, -mx.inf, logprobs))


INVALID_DISTRIBUTIONS: Final[Mapping[str, Sequence[Mislabel]]] = {
    "is not finite": (
        lambda logprobs, _: mx.full(logprobs.shape, mx.nan),
        _with_first(mx.nan),
        _with_first(mx.inf),
        lambda logprobs, _: mx.full(logprobs.shape, -mx.inf),
    ),
    "does not add up to 1": (lambda logprobs, _: logprobs - 3.0,),
    "excludes the drafted token": (_without_token,),
}
"""Invalid distributions by what is wrong with them. Several under one key take turns."""


def mislabelled(source: DraftSource, name: str) -> DraftSource:
    """The same drafts with distributions of `INVALID_DISTRIBUTIONS[name]`."""
    kinds = cycle(INVALID_DISTRIBUTIONS[name])

    def mislabelling(run: SamplerRun, depth: int) -> Draft:
        draft, invalid = source(run, depth), next(kinds)
        uniform = log_softmax(mx.zeros((1, run.logits.shape[1])))
        given = [uniform if one is None else one for one in draft.logprobs or [None] * depth]
        tokens = [draft.tokens[index : index + 1] for index in range(depth)]
        return Draft(draft.tokens, list(map(invalid, given, tokens)))

    return mislabelling


def chi_square(pairs: Iterable[tuple[float, float]]) -> float:
    """P-value of a chi-square test of how often outcomes were observed and expected."""
    cells: list[tuple[float, float]] = []
    observed = expected = 0.0
    for count, mean in sorted(pairs, key=lambda pair: pair[1]):
        observed, expected = observed + count, expected + mean
        # Outcomes that are expected less often are pooled.
        if expected >= 10.0:
            cells.append((observed, expected))
            observed = expected = 0.0
    if expected and cells:
        cells[-1] = (cells[-1][0] + observed, cells[-1][1] + expected)
    if len(cells) < 2:
        return 1.0
    return chi_square_survival(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1)


def chi_square_survival(statistic: float, freedom: int) -> float:
    """Probability that a chi-square variable exceeds a statistic.

    The regularised upper incomplete gamma function, by its recurrence from 1/2 or from 1:
    https://dlmf.nist.gov/8.8 (8.8.6).
    """
    x = statistic / 2
    if x <= 0:
        return 1.0
    a = 0.5 if freedom % 2 else 1.0
    total = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    while a < freedom / 2:
        total += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return total


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
        run = SamplerRun(self.make_sampler(), markov_logits())
        for round in range(20):
            with at_step(round, len(run.sequence)):
                run.round(no_drafts(run, 0))
                emitted = len(run.sequence) - len(PROMPT)
                require(emitted == round + 1, f"emits {emitted} tokens in {round + 1} rounds")
                token = run.sequence[-1]
                require(0 <= token < run.logits.shape[1], f"emits {token}, which is no id")

    @contract
    def test_choose_returns_a_token_and_its_distribution(self) -> None:
        """`choose` returns an id, and normalised log-probabilities in which it is possible."""
        run = SamplerRun(self.make_sampler(), markov_logits())
        for index in range(6):
            with at_step(0, len(PROMPT) + index):
                logits = run.logits[mx.array([index % 8])]
                choice = run.sampler.choose(logits, index)
                require(choice.token.shape == (1,), f"returns tokens {choice.token.shape}")
                if choice.logprobs is not None:
                    shape = choice.logprobs.shape
                    require(shape == logits.shape, f"returns log-probabilities {shape}")
                    total = cast(float, mx.exp(choice.logprobs).sum().item())
                    require(abs(total - 1) < 1e-3, f"probabilities add up to {total}")
                    own = cast(float, choice.logprobs[0, choice.token[0]].item())
                    require(own > -1e30, "draws a token of probability 0")

    @contract
    def test_output_is_that_of_plain_decoding(self, count: int = 600) -> None:
        """Whatever is drafted, the output equals that of plain decoding, or has its distribution.

        `count` tokens are generated if distributions are compared.
        """
        if self.same_text:
            sources = {f"with {name}": source for name, source in _sources(8).items()}
            for depths in ((3,), DEPTHS):
                self._check_output(sources, depths, 60)
        else:
            sources = {**_sources(4), "no drafts": no_drafts}
            said = "with {name} frequencies have a p-value of {p_value:.1e}"
            self._check_frequencies(sources, (3, 1, 2), count, said)

    @contract
    def test_invalid_draft_distributions_change_nothing(self, count: int = 400) -> None:
        """A draft whose distribution is invalid does not change the output or its distribution.

        Without `same_text`, such a draft is rejected, and the token in its place has the
        target's own distribution. `count` tokens are generated if distributions are compared.
        """
        draft_model = sampled_drafts(markov_logits(2, 8 if self.same_text else 4))
        sources = {
            f"where a distribution {name}": mislabelled(draft_model, name)
            for name in INVALID_DISTRIBUTIONS
        }
        if self.same_text:
            self._check_output(sources, DEPTHS, 30)
        else:
            said = "frequencies have a p-value of {p_value:.1e} {name}"
            self._check_frequencies(sources, (1, 2), count, said)

    def _check_output(
        self, sources: Mapping[str, DraftSource], depths: Sequence[int], count: int
    ) -> None:
        """Compare generated tokens with those of plain decoding."""
        target = markov_logits()
        plain = generate(self.make_sampler(), target, count, no_drafts, (0,))
        for name, source in sources.items():
            found = generate(self.make_sampler(), target, count, source, depths)
            for index, (one, other) in enumerate(zip(found, plain, strict=True)):
                with at_step(position=len(PROMPT) + index):
                    require(one == other, f"{one} instead of {other} {name}")

    def _check_frequencies(
        self, sources: Mapping[str, DraftSource], depths: Sequence[int], count: int, said: str
    ) -> None:
        """Compare frequencies of generated tokens with the distributions that `choose` reports."""
        target = markov_logits(vocab_size=4)
        expected = [_distribution(self.make_sampler(), target, token) for token in range(4)]
        for name, source in sources.items():
            found = generate(self.make_sampler(), target, count, source, depths)
            p_value = _p_value(found, expected)
            require(p_value > 1e-6, said.format(name=name, p_value=p_value))

    @contract
    def test_the_same_seed_gives_the_same_output(self) -> None:
        """Two equal samplers used in turn, with equal drafts, emit the same tokens."""
        one, other = (SamplerRun(self.make_sampler(), markov_logits()) for _ in range(2))
        source = sampled_drafts(markov_logits(2))
        for round in range(20):
            with at_step(round, len(one.sequence)):
                depth = DEPTHS[round % 5]
                one.round(source(one, depth))
                other.round(source(other, depth))
                said = f"{one.sequence[-1]}, and then {other.sequence[-1]}"
                require(one.sequence == other.sequence, said)

    @contract
    def test_begin_forgets_the_sequence_before(self) -> None:
        """After another sequence, a sampler emits the tokens of a fresh one.

        The other sequence is left in the middle of a round, as after an error: its last block
        is verified, and not kept.
        """
        if not self.draws_itself:
            return
        target, draft_model, sampler = markov_logits(), markov_logits(2), self.make_sampler()
        source, other = sampled_drafts(draft_model), SamplerRun(sampler, draft_model)
        for depth in DEPTHS:
            other.round(source(other, depth))
        last_token = mx.array(other.sequence[-1:], dtype=mx.uint32)
        sampler.verify(last_token, no_drafts(other, 0), target[last_token])
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
        target = markov_logits()
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
        source = sampled_drafts(markov_logits(2))
        with same_random_state():
            generate(self.make_sampler(), markov_logits(), 20, source, DEPTHS)


def _sources(vocab_size: int) -> dict[str, DraftSource]:
    """Sources of drafts by name."""
    return {
        "a lookup": drafts_of(mx.argmax),
        "wrong drafts": drafts_of(mx.argmin),
        "a draft model": sampled_drafts(markov_logits(2, vocab_size)),
    }


def _distribution(sampler: Sampler, target: mx.array, last: int) -> list[float]:
    """Probabilities of the next token after `last`, as `choose` reports them."""
    choice = SamplerRun(sampler, target).sampler.choose(target[last : last + 1], 0)
    if choice.logprobs is None:
        said = "choose returns no distribution, and so the output must not depend on drafts"
        raise ContractError(said)
    return cast("list[float]", mx.exp(choice.logprobs[0]).tolist())


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
