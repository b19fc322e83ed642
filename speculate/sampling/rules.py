"""How drafts are judged: by equality with the target's own choice, or by a law of their own."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate.protocols import Choice, Draft


class Chooser(Protocol):
    """Picks the target's own token in each row, so that equal drafts stand.

    Law: what it picks in a row depends on that row and its position alone.
    """

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        """Pick a draft's token at `position` from a proposer's logits `(1, vocabulary)`."""

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        """The target's tokens, `(rows,)`, one for each row of `(rows, vocabulary)`."""


@attrs.frozen(eq=False)
class Judgement:
    """What stands of a draft.

    Attributes:
        accepted: `()` int32.
        tokens: `(rows,)`, what comes after each possible number of accepted drafts.
    """

    accepted: mx.array
    tokens: mx.array


class Rule(Protocol):
    """Decides how many drafts stand, from all rows of a block at once."""

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        """Pick a draft's token at `position` from a proposer's logits `(1, vocabulary)`."""

    def judge(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Judgement:
        """Judge `k` drafts by the target's rows, each for one position.

        Args:
            logits: `(k + 1, vocabulary)`, or `(k, vocabulary)` where nobody asks what comes
                after the last draft.
            positions: One for each row.
            draft: `k` tokens.
        """


def leading(stands: mx.array) -> mx.array:
    """How many of `(k,)` booleans, `k` at least 1, hold before the first that does not."""
    return mx.cumprod(stands.astype(mx.int32)).sum().astype(mx.int32)


class ByEquality:
    """A draft stands while it equals what the target picks: the text is the target's alone.

    Args:
        chooser: What the target picks.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return self._chooser.choose(logits, position)

    def judge(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Judgement:
        tokens = self._chooser.pick(logits, positions)
        if not draft.tokens.shape[0]:
            return Judgement(mx.zeros((), dtype=mx.int32), tokens)
        return Judgement(leading(tokens[: draft.tokens.shape[0]] == draft.tokens), tokens)
