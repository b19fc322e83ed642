"""`Off` and `Fixed`: no drafts, or drafts of the same depth in every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from speculate.protocols import Plan, Proposer, Round
from speculate.strategies.checking import check_proposer
from speculate.validation import validated_integer

MAX_DEPTH: Final = 48
"""Most tokens of a draft. Caches record 64 tokens, and a block may also hold replayed tokens."""


@final
class Off:
    """Decodes token by token, without drafts."""

    def __repr__(self) -> str:
        return "Off()"

    @property
    def proposers(self) -> Sequence[Proposer]:
        return ()

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan()

    def observe(self, round: Round, /) -> None:
        """Does nothing: the plan never changes."""


@final
class Fixed:
    """Drafts `depth` tokens in every round.

    Args:
        proposer: The proposer that drafts.
        depth: Tokens to draft, 0 to 48; 0 decodes token by token.

    Raises:
        OptionError: `proposer` is not a proposer, or `depth` is out of range.
    """

    def __init__(self, proposer: Proposer, depth: int = 3) -> None:
        check_proposer(proposer)
        self._proposer = proposer
        self._depth = validated_integer("depth", depth, 0, MAX_DEPTH)

    def __repr__(self) -> str:
        return f"Fixed({self._proposer!r}, depth={self._depth})"

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self._proposer,)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self._proposer, self._depth) if self._depth else Plan()

    def observe(self, round: Round, /) -> None:
        """Does nothing: the plan never changes."""
