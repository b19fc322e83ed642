"""A text told to a proposer, round by round, as a decoder tells it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Final, final

import mlx.core as mx

from speculate.protocols import Choice, Commit, Proposer, SpeculativeModel, Verdict
from speculate.testing.broken import at, require
from speculate.testing.drafts import Watching, checked, greedy

LENGTH: Final = 90
PHRASE: Final = 13
"""Tokens that the text repeats, so that a lookup finds something."""


@final
class Telling:
    """A proposer's factory, and the text that is told.

    Args:
        make: Makes the proposer.
        target: The model that it drafts for.
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.

    Attributes:
        text: Ids. A phrase, again and again, with changes.
    """

    def __init__(
        self, make: Callable[[], Proposer], target: SpeculativeModel, tolerance: float = 0.0
    ) -> None:
        self.make = make
        self.target = target
        self.tolerance = tolerance
        self.text: list[int] = repetitive(target.vocab_size)
        self._ideals: dict[tuple[int, int, int], tuple[list[int], list[mx.array]]] = {}

    def ideal(self, start: int, stop: int, depth: int) -> tuple[list[int], list[mx.array]]:
        """What a fresh proposer drafts that was told tokens `start` to `stop` in one piece.

        Returns:
            The draft, and the logits that it was picked from.
        """
        place = (start, stop, depth)
        if place not in self._ideals:
            fresh, shown = self.fresh(start), Watching()
            fresh.read(stop - start)
            drafted = fresh.draft(depth, shown)
            mx.eval(shown.rows)
            self._ideals[place] = drafted, shown.rows
        return self._ideals[place]

    @cached_property
    def hidden(self) -> mx.array:
        """`(1, T, width)`, the target's hidden states of the text."""
        tokens = mx.array([self.text], dtype=mx.uint32)
        hidden = self.target.forward(tokens, self.target.make_cache()).hidden
        mx.eval(hidden)
        return hidden

    def fresh(self, start: int = 0) -> Told:
        """A new proposer that begins behind `start` tokens."""
        return Told(self, self.make(), start)


def repetitive(vocab_size: int, seed: int = 0) -> list[int]:
    """A text that repeats a phrase, with another token here and there."""
    dice = random.Random(seed)
    phrase = [dice.randrange(vocab_size) for _ in range(PHRASE)]
    text = [phrase[n % PHRASE] for n in range(LENGTH)]
    for place in range(7, LENGTH, 11):
        text[place] = dice.randrange(vocab_size)
    return text


@final
class Told:
    """A proposer in the middle of the text.

    Attributes:
        proposer: The proposer.
        position: Tokens that were committed.
        rounds: How many commits.
    """

    def __init__(self, telling: Telling, proposer: Proposer, start: int = 0) -> None:
        self._telling = telling
        self.proposer = proposer
        self.rounds: int = 0
        self.position: int = start
        proposer.attach(telling.target)
        self.begin(start)

    def begin(self, start: int) -> None:
        """Have it begin the text anew."""
        self.proposer.begin(start)
        self.position = start

    def commit(self, count: int, verdict: Verdict | None = None, *, known: bool = True) -> None:
        """Commit the next tokens of the text.

        Args:
            count: How many.
            verdict: What became of a draft.
            known: Whether the token behind them is known by now.

        Raises:
            BrokenLawError: It is somewhere else afterwards.
        """
        start, stop = self.position, self.position + count
        text, hidden = self._telling.text, self._telling.hidden[:, start:stop]
        ids = text[start:stop]
        tokens = mx.array(ids, dtype=mx.uint32)
        newest = text[stop] if known and stop < len(text) else None
        with at(self.rounds, start):
            self.proposer.commit(Commit(tokens, hidden, verdict, ids, newest))
            found = self.proposer.position()
            require(found == stop, f"says that it is at {found} and was told {stop}")
        self.position = stop
        self.rounds += 1

    def read(self, count: int, chunk: int = 100) -> None:
        """Take in a prompt, chunk by chunk."""
        while count > 0:
            self.commit(min(chunk, count), known=False)
            count -= chunk

    def draft(self, depth: int, choose: Callable[[mx.array, int], Choice] = greedy) -> list[int]:
        """Ask for a draft behind the newest token.

        Raises:
            BrokenLawError: What it drafts is no draft.
        """
        newest = mx.array([self._telling.text[self.position]], dtype=mx.uint32)
        with at(self.rounds, self.position):
            draft = self.proposer.propose(newest, depth, choose)
            return checked(self.proposer, draft, depth, self._telling.target)

    def round(self, depth: int, right: int) -> None:
        """A round of its own, of which the text takes what is right.

        Args:
            depth: Tokens to draft.
            right: How many are right, where it lets `choose` decide.
        """
        text = [*self._telling.text[self.position + 1 :], *[0] * depth]

        def guided(logits: mx.array, index: int) -> Choice:
            return Choice(mx.array([(text[index] + (index >= right)) % logits.shape[1]]))

        drafted = self.draft(depth, guided)
        wrong = [a != b for a, b in zip(drafted, text, strict=False)]
        accepted = wrong.index(True) if any(wrong) else len(drafted)
        self.commit(1 + accepted, Verdict(self.proposer.name, len(drafted), accepted))
