"""Texts drawn by a sampler from a table of logits, with drafts and without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.protocols import Choice, Draft, Sampler
from speculate.testing.broken import at, require

PROMPT: Final = (1, 3, 2, 1, 0)
Drafter = Callable[["Drawn", int], Draft]
"""Drafts so many tokens behind a text."""


@final
class Table:
    """A language model whose next token depends on the newest one alone.

    Args:
        seed: Of the logits.
        vocab_size: Ids it knows.

    Attributes:
        logits: `(vocabulary, vocabulary)` float32, after each token.
    """

    def __init__(self, seed: int = 1, vocab_size: int = 8) -> None:
        self.vocab_size = vocab_size
        key = mx.random.key(seed)
        self.logits: mx.array = 1.5 * mx.random.normal((vocab_size, vocab_size), key=key)

    def rows(self, tokens: mx.array) -> mx.array:
        """Logits `(T, vocabulary)` behind each of some tokens `(T,)`."""
        return self.logits[tokens]


@final
@attrs.define(eq=False)
class Drawn:
    """A text while it is drawn.

    Attributes:
        sampler: Which draws it.
        table: The target.
        text: The prompt, and what was emitted.
        drafted: Tokens that were drafted.
        accepted: Those that stood.
    """

    sampler: Sampler
    table: Table
    text: list[int] = attrs.Factory(lambda: list(PROMPT))
    drafted: int = 0
    accepted: int = 0

    def __attrs_post_init__(self) -> None:
        self.sampler.begin(list(PROMPT[:-1]), len(PROMPT) - 1, frozenset())

    def round(self, draft: Draft) -> None:
        """Have the sampler decide on a draft, and make what stands text.

        Raises:
            BrokenLawError: The decision cannot be one.
        """
        newest = mx.array(self.text[-1:], dtype=mx.uint32)
        k = draft.tokens.shape[0]
        fed = mx.concatenate([newest, draft.tokens.astype(mx.uint32)])
        decision = self.sampler.verify(newest, draft, self.table.rows(fed))
        accepted = cast(int, decision.accepted.item())
        require(0 <= accepted <= k, f"accepts {accepted} of {k} drafts")
        own = cast("list[int]", decision.tokens.tolist())
        require(len(own) > accepted, f"gives {len(own)} tokens, and none for {accepted} accepted")
        shape = decision.logits.shape
        fits = len(shape) == 2 and shape[0] > accepted and shape[1] == self.table.vocab_size
        require(fits, f"gives logits {shape} for {accepted} accepted drafts")
        self.sampler.keep(fed[: 1 + accepted])
        drafts = cast("list[int]", draft.tokens.tolist())
        self.text += [*drafts[:accepted], own[accepted]]
        self.drafted += k
        self.accepted += accepted


def draw(
    sampler: Sampler, table: Table, count: int, drafter: Drafter, depths: Sequence[int]
) -> list[int]:
    """A text of so many tokens.

    Args:
        sampler: A fresh one.
        table: The target.
        count: Tokens to emit.
        drafter: Who drafts.
        depths: How much, round by round.
    """
    drawn = Drawn(sampler, table)
    for round, depth in enumerate(itertools.cycle(depths)):
        if len(drawn.text) >= len(PROMPT) + count:
            break
        with at(round, len(drawn.text)):
            drawn.round(drafter(drawn, depth))
    return drawn.text[len(PROMPT) : len(PROMPT) + count]


def nobody(drawn: Drawn, depth: int) -> Draft:
    """No drafts: plain decoding."""
    return Draft(mx.zeros((0,), dtype=mx.uint32))


def certain(drawn: Drawn, depth: int) -> Draft:
    """Drafts that are not drawn but looked up: each token's most likely follower."""
    tokens, newest = [], drawn.text[-1]
    for _ in range(depth):
        newest = cast(int, mx.argmax(drawn.table.logits[newest]).item())
        tokens.append(newest)
    return Draft(mx.array(tokens, dtype=mx.uint32))


def wrong(drawn: Drawn, depth: int) -> Draft:
    """The least likely followers."""
    tokens, newest = [], drawn.text[-1]
    for _ in range(depth):
        newest = cast(int, mx.argmin(drawn.table.logits[newest]).item())
        tokens.append(newest)
    return Draft(mx.array(tokens, dtype=mx.uint32))


def drawn_from(drafts: Table) -> Drafter:
    """Drafts that the sampler draws from another table, as from a draft model."""

    def drafter(drawn: Drawn, depth: int) -> Draft:
        newest = mx.array(drawn.text[-1:], dtype=mx.uint32)
        choices: list[Choice] = []
        for index in range(depth):
            choices.append(drawn.sampler.choose(drafts.rows(newest), index))
            newest = choices[-1].token
        tokens = [choice.token for choice in choices]
        if not tokens:
            return nobody(drawn, 0)
        return Draft(mx.concatenate(tokens), [choice.law for choice in choices])

    return drafter


Mislabel = Callable[[mx.array, mx.array], mx.array]
"""What is said of a drafted token `(1,)` instead of its law `(1, vocabulary)`."""


def _normalised(law: mx.array) -> mx.array:
    return law - mx.logsumexp(law, axis=-1, keepdims=True)


def _with_first(value: float) -> Mislabel:
    return lambda law, _: mx.where(mx.arange(law.shape[1]) == 0, value, law)


def _without_token(law: mx.array, token: mx.array) -> mx.array:
    return _normalised(mx.where(mx.arange(law.shape[1]) == token, -mx.inf, law))


NO_LAWS: Final[Mapping[str, Sequence[Mislabel]]] = {
    "is not finite": (
        lambda law, _: mx.full(law.shape, mx.nan),
        _with_first(mx.nan),
        _with_first(mx.inf),
        lambda law, _: mx.full(law.shape, -mx.inf),
    ),
    "does not add up to 1": (lambda law, _: law - 3.0,),
    "rules the draft out": (_without_token,),
}
"""Laws that are none, by what is wrong with them; where there are several, they take turns."""


def mislabelled(drafter: Drafter, name: str) -> Drafter:
    """The same drafts, with laws of `NO_LAWS`."""
    kinds = itertools.cycle(NO_LAWS[name])

    def drafting(drawn: Drawn, depth: int) -> Draft:
        draft, broken = drafter(drawn, depth), next(kinds)
        flat = _normalised(mx.zeros((1, drawn.table.vocab_size)))
        laws = [flat if law is None else law for law in draft.laws or [None] * depth]
        tokens = [draft.tokens[index : index + 1] for index in range(depth)]
        return Draft(draft.tokens, list(map(broken, laws, tokens)))

    return drafting
