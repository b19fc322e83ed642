"""Whether what is given to a strategy can draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast, final

from speculate.errors import OptionError
from speculate.protocols import Plan, Proposer, Round, SpeculativeModel, Strategy
from speculate.validation import validated_integer


def check_proposer(proposer: object) -> None:
    """Refuse what is no proposer: a model, a list of them, or a class that was not called.

    Raises:
        OptionError: It is none.
    """
    if isinstance(proposer, type):
        raise OptionError(f"proposer: {proposer.__name__} is a class: give an object of it")
    if isinstance(proposer, SpeculativeModel | Strategy | Sequence | dict) or not _named(proposer):
        raise OptionError(
            f"proposer: {type(proposer).__name__} is no proposer: give one, as MTPChain(), "
            "DraftModel(draft) or PromptLookup(), and several one by one"
        )


def _named(proposer: object) -> bool:
    """Whether it has the name that every proposer has. Wrappers may pass it on from another."""
    try:
        return isinstance(cast(Proposer, proposer).name, str)
    except AttributeError:
        return False


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
