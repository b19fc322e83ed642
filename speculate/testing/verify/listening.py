"""Hears what a proposer drafts."""

from __future__ import annotations

from typing import cast, final

import attrs
import mlx.core as mx

from speculate.protocols import Choose, Commit, Draft, Proposer, SpeculativeModel


@final
@attrs.frozen(eq=False)
class Heard:
    """A draft.

    Attributes:
        limit: Tokens that were asked for.
        tokens: `(k,)`, those that came.
    """

    limit: int
    tokens: mx.array

    def ids(self) -> list[int]:
        """The tokens on the host. Synchronises."""
        return cast("list[int]", self.tokens.tolist())


@final
class Listening:
    """A proposer, whose drafts are remembered.

    Args:
        proposer: Who really drafts.

    Attributes:
        heard: The drafts that were not empty, in order.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.heard: list[Heard] = []

    @property
    def name(self) -> str:
        return self._proposer.name

    def attach(self, target: SpeculativeModel, /) -> None:
        self._proposer.attach(target)

    def begin(self, position: int, /) -> None:
        self._proposer.begin(position)

    def position(self) -> int:
        return self._proposer.position()

    def commit(self, commit: Commit, /) -> None:
        self._proposer.commit(commit)

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        draft = self._proposer.propose(newest, limit, choose)
        if draft.tokens.shape[0]:
            self.heard.append(Heard(limit, draft.tokens))
        return draft

    def settle(self) -> None:
        self._proposer.settle()
