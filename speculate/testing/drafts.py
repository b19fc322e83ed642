"""How a proposer picks in a test, and whether what it drafts is a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx

from speculate.decoding.proposers import validated_draft
from speculate.protocols import Choice, Draft, Proposer, SpeculativeModel
from speculate.testing.broken import require
from speculate.testing.driving import distances


def greedy(logits: mx.array, index: int) -> Choice:
    """The most likely token."""
    return Choice(mx.argmax(logits, axis=-1))


@final
class Watching:
    """A greedy `choose` that remembers which logits it was shown.

    Attributes:
        rows: They, one for each draft.
        indices: Which drafts they were for.
    """

    def __init__(self) -> None:
        self.rows: list[mx.array] = []
        self.indices: list[int] = []

    def __call__(self, logits: mx.array, index: int, /) -> Choice:
        self.rows.append(logits)
        self.indices.append(index)
        return greedy(logits, index)


def checked(proposer: Proposer, draft: Draft, depth: int, target: SpeculativeModel) -> list[int]:
    """The ids of a draft, if a decoder would take it and the target has all of them.

    Raises:
        SpeculateError: It is too long, not of ids, or its laws are not one for each token.
        BrokenLawError: An id is none of the target's.
    """
    ids = cast("list[int]", validated_draft(proposer, draft, depth).tokens.tolist())
    require(all(0 <= id_ < target.vocab_size for id_ in ids), f"drafts {ids}, which are no ids")
    return ids


def same_rows(found: Sequence[mx.array], expected: Sequence[mx.array], tolerance: float) -> bool:
    """Whether the logits that were shown to `choose` are the same."""
    if len(found) != len(expected):
        return False
    pairs = zip(found, expected, strict=True)
    largest = max((cast(float, mx.abs(row).max().item()) for row in expected), default=0.0)
    return all(max(distances(a, b)) <= tolerance * largest for a, b in pairs)


def near_tie(
    found: Sequence[int], expected: Sequence[int], rows: Sequence[mx.array], tolerance: float
) -> int | None:
    """The first draft that is another one, if rounding explains that.

    Args:
        found: As drafted.
        expected: As it ought to be.
        rows: Logits `(1, vocabulary)` that each of these was picked from.
        tolerance: How far logits may be off, in units of the largest.
    """
    pairs = zip(found, expected, rows, strict=False)
    for index, (one, other, row) in enumerate(pairs):
        if one != other:
            gap = cast(float, (row[0, other] - row[0, one]).item())
            largest = cast(float, mx.abs(row).max().item())
            # Each of the two may be off.
            return index if gap < 2 * tolerance * largest else None
    return None
