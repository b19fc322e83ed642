"""Drives a proposer over one sequence in `ProposerTests`, as a decoder would."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate._mx import to_ints
from speculate.decoding.proposers import validated_draft
from speculate.protocols import Choice, Commit, Draft, Proposer, SpeculativeModel, Verdict
from speculate.testing._model_harness import distances
from speculate.testing.contract import at_step, require

LENGTH: Final = 90
"""Tokens of the sequence."""

DEPTH: Final = 4
"""Tokens of most drafts."""

PHRASE: Final = 13
"""Tokens of the phrase that the sequence repeats, so that a lookup finds matches."""


def greedy(logits: mx.array, index: int) -> Choice:
    """A `choose` that returns the most likely token."""
    return Choice(mx.argmax(logits, axis=-1))


@final
class RecordingChoose:
    """A greedy `choose` that records its arguments: logits `(1, vocabulary)`, and indices."""

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
    """Check a draft as a decoder does, and that the target knows its ids; return them."""
    ids = to_ints(validated_draft(proposer, draft, depth).tokens)
    known = all(0 <= id_ < target.vocab_size for id_ in ids)
    require(known, f"drafts {ids}, which are not all ids of the target")
    return ids


def same_rows(found: Sequence[mx.array], expected: Sequence[mx.array], tolerance: float) -> bool:
    """Whether two lists of logits `(1, vocabulary)` are the same.

    The tolerance is in units of the largest expected logit.
    """
    if len(found) != len(expected):
        return False
    pairs = zip(found, expected, strict=True)
    largest = max((cast(float, mx.abs(row).max().item()) for row in expected), default=0.0)
    return all(max(distances(a, b)) <= tolerance * largest for a, b in pairs)


def near_tie(
    found: Sequence[int], expected: Sequence[int], rows: Sequence[mx.array], tolerance: float
) -> int | None:
    """Index of the first drafted id that differs, if rounding explains the difference.

    Each expected id was picked from logits `(1, vocabulary)`, which may be off by `tolerance`, in
    units of the largest.
    """
    for index, (one, other, row) in enumerate(zip(found, expected, rows, strict=False)):
        if one != other:
            gap = cast(float, (row[0, other] - row[0, one]).item())
            largest = cast(float, mx.abs(row).max().item())
            # Both logits may be off.
            return index if gap < 2 * tolerance * largest else None
    return None


@final
class ProposerHarness:
    """A factory of proposers for a target, and the ids and hidden states committed to them."""

    def __init__(
        self, make: Callable[[], Proposer], target: SpeculativeModel, tolerance: float
    ) -> None:
        self.make = make
        self.target = target
        self.tolerance = tolerance
        self.sequence: list[int] = repetitive(target.vocab_size)
        tokens = mx.array([self.sequence], dtype=mx.uint32)
        self.hidden: mx.array = target.forward(tokens, target.make_cache()).hidden
        mx.eval(self.hidden)
        self._drafts: dict[tuple[int, int], tuple[list[int], list[mx.array]]] = {}

    def start(self, position: int = 0) -> ProposerRun:
        """Begin with a fresh proposer at a position of the sequence."""
        return ProposerRun(self, self.make(), position)

    def prompted(self, count: int, chunk: int = 100, position: int = 0) -> ProposerRun:
        """Begin with a fresh proposer, and commit a prompt in chunks."""
        run = self.start(position)
        run.commit_prompt(count, chunk)
        return run

    def check_draft(self, run: ProposerRun, start: int = 0) -> None:
        """Compare a draft with that of a fresh proposer, after one commit of the same sequence."""
        key = (start, run.position)
        if key not in self._drafts:
            choose = RecordingChoose()
            drafted = self.prompted(run.position - start, position=start).draft(DEPTH, choose)
            mx.eval(choose.rows)
            self._drafts[key] = drafted, choose.rows
        expected, rows = self._drafts[key]
        choose = RecordingChoose()
        drafted = run.draft(DEPTH, choose)
        # After a near tie that rounding decided, two chains continue with different tokens.
        count = near_tie(drafted, expected, rows, self.tolerance)
        with at_step(run.rounds, run.position):
            same = drafted[:count] == expected[:count]
            require(same, f"drafts {drafted}, and a fresh proposer {expected}")
            stop = None if count is None else count + 1
            same = same_rows(choose.rows[:stop], rows[:stop], self.tolerance)
            require(same, "picks from other logits than a fresh proposer")


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
    """A proposer part way through the sequence, after so many commits and tokens."""

    def __init__(self, harness: ProposerHarness, proposer: Proposer, start: int) -> None:
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
        """Commit the next tokens of the sequence; whether the one after them is known already."""
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
        """Ask for a valid draft of at most `depth` ids after the last token."""
        last_token = mx.array([self._harness.sequence[self.position]], dtype=mx.uint32)
        with at_step(self.rounds, self.position):
            draft = self.proposer.propose(last_token, depth, choose)
            return validated_ids(self.proposer, draft, depth, self._harness.target)

    def round(self, depth: int, right: int) -> None:
        """Run a round with a draft of this proposer, and commit its accepted tokens.

        `right` of them are right if the proposer calls `choose`.
        """
        sequence = [*self._harness.sequence[self.position + 1 :], *[0] * depth]

        def guided(logits: mx.array, index: int) -> Choice:
            return Choice(mx.array([(sequence[index] + (index >= right)) % logits.shape[1]]))

        drafted = self.draft(depth, guided)
        wrong = [a != b for a, b in zip(drafted, sequence, strict=False)]
        accepted = wrong.index(True) if any(wrong) else len(drafted)
        self.commit(1 + accepted, Verdict(self.proposer.name, len(drafted), accepted))
