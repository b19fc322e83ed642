"""The strategies that never change their mind: no drafts, or the same depth in every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from speculate.protocols import Plan, Proposer, Round
from speculate.strategies.checking import check_proposer
from speculate.validation import validated_integer


@final
class Off:
    """Decodes token by token."""

    @property
    def proposers(self) -> Sequence[Proposer]:
        return ()

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan()

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""


MAX_DEPTH: Final = 48
"""Deepest draft. Caches record 64 tokens, and a block also feeds what was not fed yet."""


@final
class Fixed:
    """Drafts `depth` tokens in every round.

    Args:
        proposer: Who drafts.
        depth: Tokens to draft, 0 to 48; 0 decodes token by token.

    Raises:
        OptionError: `proposer` is none, or `depth` is out of range.
    """

    def __init__(self, proposer: Proposer, depth: int = 3) -> None:
        check_proposer(proposer)
        self._proposer = proposer
        self._depth = validated_integer("depth", depth, 0, MAX_DEPTH)

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self._proposer,)

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self._proposer, self._depth) if self._depth else Plan()

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""
