"""Drives a proposer over one sequence in `ProposerTests`, as a decoder would."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, cast, final

import mlx.core as mx

from speculate.decoding.proposers import validated_draft
from speculate.protocols import Choice, Commit, Draft, Proposer, SpeculativeModel, Verdict
from speculate.testing._model_harness import distances
from speculate.testing.contract import at_step, require

LENGTH: Final = 90
"""Tokens of the sequence."""

PHRASE: Final = 13
"""Tokens of the phrase that the sequence repeats, so that a lookup finds matches."""


def greedy(logits: mx.array, index: int) -> Choice:
    """A `choose` that returns the most likely token."""
    return Choice(mx.argmax(logits, axis=-1))


@final
class RecordingChoose:
    """A greedy `choose` that records its arguments.

    Attributes:
        rows: Logits seen, one `(1, vocabulary)` array per drafted token.
        indices: Index of each drafted token.
    """

    def __init__(self) -> None:
        self.rows: list[mx.array] = []
        self.indices: list[int] = []

    def __call__(self, logits: mx.array, index: int, /) -> Choice:
        self.rows.append(logits)
        self.indices.append(index)
        return greedy(logits, index)


def validated_ids(
    proposer: Proposer, draft: Draft, depth: int, target: SpeculativeModel
) -> list[int]:
    """Check a draft as a decoder does, and that the target knows its ids.

    Args:
        proposer: Which returned the draft.
        draft: The draft.
        depth: Tokens that were asked for.
        target: The model that it drafts for.

    Returns:
        The drafted ids.

    Raises:
        SpeculateError: The draft is too long, not made of ids, or has not one distribution per
            token.
        ContractError: The target does not know an id.
    """
    ids = cast("list[int]", validated_draft(proposer, draft, depth).tokens.tolist())
    known = all(0 <= id_ < target.vocab_size for id_ in ids)
    require(known, f"drafts {ids}, which are not all ids of the target")
    return ids


def same_rows(found: Sequence[mx.array], expected: Sequence[mx.array], tolerance: float) -> bool:
    """Whether two lists of logits are the same.

    Args:
        found: Arrays `(1, vocabulary)`.
        expected: Arrays `(1, vocabulary)`.
        tolerance: Largest difference, in units of the largest expected logit.
    """
    if len(found) != len(expected):
        return False
    pairs = zip(found, expected, strict=True)
    largest = max((cast(float, mx.abs(row).max().item()) for row in expected), default=0.0)
    return all(max(distances(a, b)) <= tolerance * largest for a, b in pairs)


def near_tie(
    found: Sequence[int], expected: Sequence[int], rows: Sequence[mx.array], tolerance: float
) -> int | None:
    """Index of the first drafted token that differs, if rounding explains the difference.

    Args:
        found: Ids drafted.
        expected: Ids that should have been drafted.
        rows: Logits `(1, vocabulary)` that each expected id was picked from.
        tolerance: How far logits may be off, in units of the largest.

    Returns:
        The index, or `None` if the drafts are equal or rounding does not explain it.
    """
    pairs = zip(found, expected, rows, strict=False)
    for index, (one, other, row) in enumerate(pairs):
        if one != other:
            gap = cast(float, (row[0, other] - row[0, one]).item())
            largest = cast(float, mx.abs(row).max().item())
            # Both logits may be off.
            return index if gap < 2 * tolerance * largest else None
    return None


@final
class ProposerHarness:
    """A factory of proposers, and the sequence that is committed to them.

    Args:
        make: Returns a fresh proposer.
        target: The model that it drafts for.
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.

    Attributes:
        sequence: Token ids: a phrase, repeated with changes.
    """

    def __init__(
        self, make: Callable[[], Proposer], target: SpeculativeModel, tolerance: float = 0.0
    ) -> None:
        self.make = make
        self.target = target
        self.tolerance = tolerance
        self.sequence: list[int] = repetitive(target.vocab_size)
        self._drafts: dict[tuple[int, int, int], tuple[list[int], list[mx.array]]] = {}

    def expected_draft(self, start: int, stop: int, depth: int) -> tuple[list[int], list[mx.array]]:
        """What a fresh proposer drafts after one commit of tokens `start` to `stop`.

        Returns:
            The drafted ids, and the logits that each was picked from.
        """
        key = (start, stop, depth)
        if key not in self._drafts:
            run, choose = self.start(start), RecordingChoose()
            run.commit_prompt(stop - start)
            drafted = run.draft(depth, choose)
            mx.eval(choose.rows)
            self._drafts[key] = drafted, choose.rows
        return self._drafts[key]

    @cached_property
    def hidden(self) -> mx.array:
        """The target's hidden states of the sequence, `(1, T, width)`."""
        tokens = mx.array([self.sequence], dtype=mx.uint32)
        hidden = self.target.forward(tokens, self.target.make_cache()).hidden
        mx.eval(hidden)
        return hidden

    def start(self, position: int = 0) -> ProposerRun:
        """Begin with a fresh proposer at a position of the sequence."""
        return ProposerRun(self, self.make(), position)


def repetitive(vocab_size: int, seed: int = 0) -> list[int]:
    """A sequence of `LENGTH` tokens that repeats a phrase, with occasional other tokens."""
    rng = random.Random(seed)
    phrase = [rng.randrange(vocab_size) for _ in range(PHRASE)]
    sequence = [phrase[n % PHRASE] for n in range(LENGTH)]
    for position in range(7, LENGTH, 11):
        sequence[position] = rng.randrange(vocab_size)
    return sequence


@final
class ProposerRun:
    """A proposer part way through the sequence.

    Attributes:
        proposer: The proposer.
        position: Number of tokens committed.
        rounds: Number of commits.
    """

    def __init__(self, harness: ProposerHarness, proposer: Proposer, start: int = 0) -> None:
        self._harness = harness
        self.proposer = proposer
        self.rounds: int = 0
        self.position: int = start
        proposer.attach(harness.target)
        self.begin(start)

    def begin(self, position: int) -> None:
        """Call `begin`, and continue the sequence from there."""
        self.proposer.begin(position)
        self.position = position

    def commit(self, count: int, verdict: Verdict | None = None, *, known: bool = True) -> None:
        """Commit the next tokens of the sequence.

        Args:
            count: How many.
            verdict: How many tokens of a draft were accepted.
            known: Whether the token after them is known already.

        Raises:
            ContractError: The proposer reports another position afterwards.
        """
        start, stop = self.position, self.position + count
        sequence, hidden = self._harness.sequence, self._harness.hidden[:, start:stop]
        ids = sequence[start:stop]
        tokens = mx.array(ids, dtype=mx.uint32)
        bonus = sequence[stop] if known and stop < len(sequence) else None
        with at_step(self.rounds, start):
            self.proposer.commit(Commit(tokens, hidden, verdict, ids, bonus))
            found = self.proposer.position()
            require(found == stop, f"reports position {found} after a commit up to {stop}")
        self.position = stop
        self.rounds += 1

    def commit_prompt(self, count: int, chunk: int = 100) -> None:
        """Commit a prompt of `count` tokens in chunks."""
        while count > 0:
            self.commit(min(chunk, count), known=False)
            count -= chunk

    def draft(self, depth: int, choose: Callable[[mx.array, int], Choice] = greedy) -> list[int]:
        """Ask for a draft after the last token.

        Args:
            depth: Most tokens to draft.
            choose: Picks tokens from logits.

        Returns:
            The drafted ids.

        Raises:
            ContractError: The draft is invalid.
        """
        last_token = mx.array([self._harness.sequence[self.position]], dtype=mx.uint32)
        with at_step(self.rounds, self.position):
            draft = self.proposer.propose(last_token, depth, choose)
            return validated_ids(self.proposer, draft, depth, self._harness.target)

    def round(self, depth: int, right: int) -> None:
        """Run a round with a draft of this proposer, and commit its accepted tokens.

        Args:
            depth: Most tokens to draft.
            right: How many drafted tokens are right, if the proposer calls `choose`.
        """
        sequence = [*self._harness.sequence[self.position + 1 :], *[0] * depth]

        def guided(logits: mx.array, index: int) -> Choice:
            return Choice(mx.array([(sequence[index] + (index >= right)) % logits.shape[1]]))

        drafted = self.draft(depth, guided)
        wrong = [a != b for a, b in zip(drafted, sequence, strict=False)]
        accepted = wrong.index(True) if any(wrong) else len(drafted)
        self.commit(1 + accepted, Verdict(self.proposer.name, len(drafted), accepted))
