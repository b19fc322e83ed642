"""What decides who drafts, and how much."""

from collections.abc import Sequence

import attrs
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.proposer import Proposer


@attrs.frozen
class Plan:
    """What to do in the next round.

    Attributes:
        proposer: Who drafts; `None` to decode one token without a draft.
        depth: Most tokens to draft. At least 1 with a proposer, 0 without.
    """

    proposer: Proposer | None = None
    depth: int = 0


@attrs.frozen
class Round:
    """What a round did. Rounds cut short by a limit or a stop token say so.

    Attributes:
        index: 0 for the first round of a call.
        proposer: Name of whoever drafted, or `None`.
        planned: Depth that the strategy asked for.
        drafted: Tokens that were drafted.
        accepted: Drafts that were emitted.
        emitted: Tokens that came out of the round.
        cut: The block ended early: a stop token, or the end of the budget.
    """

    index: int
    proposer: str | None
    planned: int
    drafted: int
    accepted: int
    emitted: int
    cut: bool


@runtime_checkable
class Strategy(Protocol):
    """Decides before each round. Pure host code: never touches an array."""

    @property
    def proposers(self) -> Sequence[Proposer]:
        """Everyone who may be asked to draft; all of them hear every verdict."""

    def plan(self, remaining: int | None, /) -> Plan:
        """Decide on the next round.

        Args:
            remaining: Tokens still to be emitted, at least 1; `None` without a limit.
        """

    def observe(self, round: Round, /) -> None:
        """Learn what a round did. Called once a round, in order."""


class Observer(Protocol):
    """Hears every round, in order, on the thread that runs the generator."""

    def __call__(self, round: Round, /) -> None:
        """An exception raised here ends the run, and leaves the caches usable."""
