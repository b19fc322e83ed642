"""Thousands of texts at once: the library's own rules, traced over an array of seeds.

A sequence is several rounds of draft, verify and emit, as a decoder does them, on a target whose
distribution is a table. Replaced are only `noise.key`, which mixes Python ints and so cannot be
traced, and the first line of `noise.hashes`, which mlx traces wrongly. `test_batched` compares
the result with a real decoder, token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Literal, cast
from unittest import mock

import attrs
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from speculate import Sampling
from speculate.protocols import Draft, DraftToken
from speculate.sampling import noise
from speculate.sampling.acceptance import (
    AcceptanceRule,
    BlockVerification,
    Coupled,
    Rejection,
)
from speculate.sampling.filters import Distribution
from speculate.sampling.processors import penalties
from tests.support.exact_distributions import (
    Floats,
    Outcome,
    distribution,
    overlap,
    round_by_block,
    round_by_token,
)
from tests.support.table_models import table, to_mx

Drafter = Literal["sampled", "greedy", "lookup"]
RuleMaker = Callable[[Sampling, int], AcceptanceRule]

HISTORY: Final = (1, 0, 1)
"""The prompt before the last token. Penalties look back no further."""

KEYED: Final = (
    "speculate.sampling.acceptance.key",
    "speculate.sampling.filters.key",
    "speculate.sampling.acceptance.key",
    "tests.support.biased_rules.key",
)


def rule_of(sampling: Sampling, seed: int) -> AcceptanceRule:
    """The acceptance rule of a decoder above temperature 0."""
    one_text = Distribution(sampling, seed)
    if sampling.mode == "rejection":
        return Rejection(one_text)
    if sampling.mode == "block":
        return BlockVerification(one_text)
    return Coupled(one_text)


@attrs.frozen(kw_only=True, eq=False)
class Setting:
    """A target, who drafts for it, and how texts are drawn."""

    sampling: Sampling
    depth: int
    drafter: Drafter = "sampled"
    target: Floats = attrs.Factory(lambda: table(1))
    drafts: Floats = attrs.Factory(lambda: 0.6 * table(1) + 0.6 * table(2))
    start: int = 3
    rule: RuleMaker = rule_of

    @property
    def p(self) -> Floats:
        """The target's distribution after each token, without penalties."""
        return np.stack([distribution(row, self.sampling) for row in self.target])

    @property
    def q(self) -> Floats:
        """The distribution that drafts are drawn from."""
        if self.drafter == "sampled":
            return np.stack([distribution(row, self.sampling) for row in self.drafts])
        return np.eye(len(self.target))[[self.certain(t) for t in range(len(self.target))]]

    def after(self, path: Outcome) -> Floats:
        """The target's distribution after the first tokens of a sequence, including penalties."""
        text = (*HISTORY, self.start, *path)
        return distribution(self.target[text[-1]], self.sampling, text)

    def round_distribution(self) -> dict[Outcome, float]:
        """What one round gives, without penalties."""
        p, q = self.p, self.q
        if self.sampling.mode == "block":
            return round_by_block(p, q, self.start, self.depth)
        return round_by_token(p, self.shared(), self.start, self.depth)

    def shared(self) -> Floats:
        """Probability that each token is drafted and accepted, after each token."""
        certain, mode = self.drafter != "sampled", self.sampling.mode
        rows = zip(self.p, self.q, strict=True)
        return np.stack([overlap(mode, p, q, certain=certain) for p, q in rows])

    def certain(self, last_token: int) -> int:
        """What is drafted where nothing is drawn."""
        if self.drafter == "greedy":
            return int(self.drafts[last_token].argmax())
        return (last_token + 1) % len(self.target)


@attrs.frozen(eq=False)
class Texts:
    """What many texts gave.

    Attributes:
        drafts: `(texts, rounds, depth)`.
        accepted: `(texts, rounds)`.
        own: `(texts, rounds)`, the token after the accepted drafts.
    """

    drafts: NDArray[np.int64]
    accepted: NDArray[np.int64]
    own: NDArray[np.int64]

    def round(self, number: int) -> list[Outcome]:
        """What each text's round of that number emitted."""
        rows = zip(
            self.drafts[:, number].tolist(),
            self.accepted[:, number].tolist(),
            self.own[:, number].tolist(),
            strict=True,
        )
        return [(*drafts[:accepted], own) for drafts, accepted, own in rows]

    def beginnings(self, count: int) -> list[Outcome]:
        """The first tokens of each text, no more than it has rounds: then all are there."""
        assert count <= self.accepted.shape[1]
        rounds = [self.round(number) for number in range(count)]
        texts = zip(*rounds, strict=True)
        return [tuple(token for part in text for token in part)[:count] for text in texts]


def decode(setting: Setting, texts: int, rounds: int = 1, first_seed: int = 0) -> Texts:
    """The first rounds of a text for each of so many seeds."""
    seeds = mx.array(np.arange(first_seed, first_seed + texts, dtype=np.uint64))
    starts = mx.full((texts,), setting.start, dtype=mx.uint32)
    with traced_keys():
        found = mx.vmap(lambda seed, start: _text(setting, seed, start, rounds))(seeds, starts)
        mx.eval(found)
    drafts, accepted, own = (np.array(part).astype(np.int64) for part in found)
    return Texts(drafts, accepted, own)


def _text(setting: Setting, seed: mx.array, start: mx.array, rounds: int) -> list[mx.array]:
    rule = setting.rule(setting.sampling, cast(int, seed))
    target = to_mx(setting.target)
    text = mx.concatenate([mx.array(HISTORY, dtype=mx.uint32), start[None]])
    position = seed.astype(mx.int32) * 0 + len(HISTORY)
    found: list[tuple[mx.array, mx.array, mx.array]] = []
    for _ in range(rounds):
        draft = _draft(setting, rule, text[-1:], position)
        block = mx.concatenate([text, draft.tokens])
        rows = _processed(setting.sampling, block, target[block[len(HISTORY) :]])
        positions = [position + 1 + row for row in range(setting.depth + 1)]
        verified = rule.verify(rows, cast("list[int]", positions), draft)
        own = verified.tokens[verified.accepted].astype(mx.uint32)
        found.append((draft.tokens, verified.accepted, own))
        kept = mx.take(block, mx.arange(len(HISTORY)) + 1 + verified.accepted)
        text = mx.concatenate([kept, own[None]])
        position = position + verified.accepted + 1
    return [mx.stack(list(part)) for part in zip(*found, strict=True)]


def _draft(
    setting: Setting, rule: AcceptanceRule, last_token: mx.array, position: mx.array
) -> Draft:
    if setting.drafter != "sampled":
        after = mx.array([setting.certain(token) for token in range(len(setting.target))])
        tokens = [last_token]
        for _ in range(setting.depth):
            tokens.append(after[tokens[-1]].astype(mx.uint32))
        return Draft(mx.concatenate(tokens[1:]))
    table_of_drafts = to_mx(setting.drafts)
    choices: list[DraftToken] = []
    for index in range(setting.depth):
        where = cast(int, position + 1 + index)
        choices.append(rule.choose(table_of_drafts[last_token], where))
        last_token = choices[-1].token.astype(mx.uint32)
    tokens = [choice.token.astype(mx.uint32) for choice in choices]
    return Draft(mx.concatenate(tokens), [choice.logprobs for choice in choices])


def _processed(sampling: Sampling, block: mx.array, rows: mx.array) -> mx.array:
    """Penalties, each row with the sequence before it."""
    chain = penalties(sampling)
    if not chain:
        return rows
    found: list[mx.array] = []
    for row in range(rows.shape[0]):
        logits = rows[row : row + 1]
        for processor in chain:
            logits = processor(block[: len(HISTORY) + 1 + row], logits)
        found.append(logits)
    return mx.concatenate(found)


@contextmanager
def traced_keys() -> Iterator[None]:
    """Let keys be made of arrays of seeds and positions."""
    with ExitStack() as stack:
        for name in KEYED:
            stack.enter_context(mock.patch(name, traced_key))
        stack.enter_context(mock.patch("speculate.sampling.noise.hashes", _traced_hashes))
        yield


def traced_key(seed: mx.array, stream: int, position: mx.array) -> tuple[mx.array, mx.array]:
    """`noise.key`, over arrays."""
    word = _mix64(_mix64(_mix64(seed) + _word(stream)) + position.astype(mx.uint64))
    return (word & _word(0xFFFFFFFF)).astype(mx.uint32), (word >> _word(32)).astype(mx.uint32)


def _traced_hashes(keys: Sequence[tuple[mx.array, mx.array]], width: int) -> mx.array:
    """`noise.hashes`, but for `ids`: under vmap, `^` misreads an operand that is not traced."""
    low, high = (mx.stack([pair[part] for pair in keys])[:, None] for part in (0, 1))
    ids = mx.arange(width, dtype=mx.uint32)[None] + 0 * low
    return noise._mix32(noise._mix32(ids ^ low) + high)


def _mix64(x: mx.array) -> mx.array:
    x = x + _word(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _word(30))) * _word(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _word(27))) * _word(0x94D049BB133111EB)
    return x ^ (x >> _word(31))


def _word(value: int) -> mx.array:
    return mx.array(np.array(value, dtype=np.uint64))
