"""Drives a sampler in `SamplerTests`: a target with known distributions, drafts, statistics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax, to_ints
from speculate.protocols import Choice, Draft, Sampler
from speculate.testing.contract import at_step, require

PROMPT: Final = (1, 3, 2, 1, 0)
"""Ids that every sequence starts with."""

MIN_EXPECTED: Final = 10.0
"""Outcomes expected less often than this are pooled in a chi-square test."""

DraftSource = Callable[["SamplerRun", int], Draft]
"""Drafts that many tokens after the sequence of a run."""

Mislabel = Callable[[mx.array, mx.array], mx.array]
"""Replaces the log-probabilities `(1, vocabulary)` given for a drafted token `(1,)`."""


@final
class MarkovTarget:
    """A target whose next token depends on the last token alone, by a square table of logits."""

    def __init__(self, seed: int = 1, vocab_size: int = 8) -> None:
        self.vocab_size = vocab_size
        key = mx.random.key(seed)
        self.logits: mx.array = 1.5 * mx.random.normal((vocab_size, vocab_size), key=key)

    def rows(self, tokens: mx.array) -> mx.array:
        """Logits `(T, vocabulary)` after each of the tokens `(T,)`."""
        return self.logits[tokens]


@final
@attrs.define(eq=False)
class SamplerRun:
    """A sequence, prompt included, that a sampler extends round by round; and its acceptance."""

    sampler: Sampler
    target: MarkovTarget
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
        outcome = self.sampler.verify(last_token, draft, self.target.rows(fed))
        accepted = cast(int, outcome.accepted.item())
        require(0 <= accepted <= k, f"accepts {accepted} of {k} drafted tokens")
        own = to_ints(outcome.tokens)
        enough = len(own) > accepted
        require(enough, f"returns {len(own)} tokens, and no bonus token for {accepted} accepted")
        shape = outcome.logits.shape
        fits = len(shape) == 2 and shape[0] > accepted and shape[1] == self.target.vocab_size
        require(fits, f"returns logits {shape} for {accepted} accepted tokens")
        self.sampler.keep(fed[: 1 + accepted])
        self.sequence += [*to_ints(draft.tokens)[:accepted], own[accepted]]
        self.drafted += k
        self.accepted += accepted


def generate(
    sampler: Sampler, target: MarkovTarget, count: int, source: DraftSource, depths: Sequence[int]
) -> list[int]:
    """Generate `count` ids with drafts of these depths, repeated."""
    run = SamplerRun(sampler, target)
    for round, depth in enumerate(itertools.cycle(depths)):
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
            last = cast(int, pick(run.target.logits[last]).item())
            tokens.append(last)
        return Draft(mx.array(tokens, dtype=mx.uint32))

    return source


def sampled_drafts(model: MarkovTarget) -> DraftSource:
    """Drafts that the sampler draws from another model's logits."""

    def source(run: SamplerRun, depth: int) -> Draft:
        last_token = mx.array(run.sequence[-1:], dtype=mx.uint32)
        choices: list[Choice] = []
        for index in range(depth):
            choices.append(run.sampler.choose(model.rows(last_token), index))
            last_token = choices[-1].token
        tokens = [choice.token for choice in choices]
        if not tokens:
            return no_drafts(run, 0)
        return Draft(mx.concatenate(tokens), [choice.law for choice in choices])

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
    kinds = itertools.cycle(INVALID_DISTRIBUTIONS[name])

    def mislabelling(run: SamplerRun, depth: int) -> Draft:
        draft, invalid = source(run, depth), next(kinds)
        uniform = log_softmax(mx.zeros((1, run.target.vocab_size)))
        given = [uniform if one is None else one for one in draft.laws or [None] * depth]
        tokens = [draft.tokens[index : index + 1] for index in range(depth)]
        return Draft(draft.tokens, list(map(invalid, given, tokens)))

    return mislabelling


def chi_square(pairs: Iterable[tuple[float, float]]) -> float:
    """P-value of a chi-square test of how often outcomes were observed and expected."""
    cells: list[tuple[float, float]] = []
    observed = expected = 0.0
    for count, mean in sorted(pairs, key=lambda pair: pair[1]):
        observed, expected = observed + count, expected + mean
        if expected >= MIN_EXPECTED:
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
