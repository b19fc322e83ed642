"""Which tokens were fed since the last kept point, and which are owed."""

from __future__ import annotations

from typing import Final, final

import mlx.core as mx

OWED_AT_MOST: Final = 8
"""Owed tokens that are fed in front of a block; more are fed on their own."""


@final
class Ledger:
    """Tokens of one group of caches.

    Owed tokens are kept, but in no cache any more, because some layer could only return to
    a point before them. They are fed again in front of the next block.

    Args:
        owed: `(1, m)`, at the kept point. Every kept point has a ledger of its own.
    """

    def __init__(self, owed: mx.array | None = None) -> None:
        self._log: list[mx.array] = []
        self._owed = owed

    def add(self, fed: mx.array) -> None:
        """Blocks `(1, T)` as they are fed, the owed tokens in front of the first."""
        self._log.append(fed)

    def cut(self, landed: int) -> None:
        """Only the first `landed` of the tokens are still in the caches."""
        if self._log and sum(block.shape[1] for block in self._log) > landed:
            self._log = [mx.concatenate(self._log, axis=1)[:, :landed]] if landed else []

    def pay(self) -> None:
        """The owed tokens are in the caches, for good."""
        self._owed = None

    @property
    def empty(self) -> bool:
        """Whether nothing was fed since the kept point."""
        return not self._log

    def paid(self) -> int:
        """Owed tokens among what was fed."""
        return self._rows() if self._log else 0

    def fed(self) -> int:
        """Tokens fed, without those fed again because they were owed."""
        return max(0, sum(block.shape[1] for block in self._log) - self._rows())

    def owed(self) -> mx.array | None:
        """Tokens `(1, m)` that go in front of the next block."""
        return None if self._log else self._owed

    def owed_at_kept_point(self) -> mx.array | None:
        """Tokens `(1, m)` that were owed there, whether they have been fed since or not."""
        return self._owed

    def owes_much(self) -> bool:
        """Whether the owed tokens are better fed as a block of their own."""
        return not self._log and self._rows() >= OWED_AT_MOST

    def owed_after(self, kept: int, landed: int) -> mx.array | None:
        """What is owed once a rewind is done: kept of the fed tokens, and in no cache any more.

        Args:
            kept: Tokens kept, without those that were owed before.
            landed: Tokens fed since the kept point that the caches still hold.
        """
        if not self._log:
            return self._owed
        keep = self._rows() + kept
        return mx.concatenate(self._log, axis=1)[:, landed:keep] if landed < keep else None

    def _rows(self) -> int:
        return 0 if self._owed is None else self._owed.shape[1]
