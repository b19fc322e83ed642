"""The contract of a strategy, which decides which proposer drafts, and how many tokens."""

from collections.abc import Mapping, Sequence

import attrs
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.proposer import Proposer


@attrs.frozen
class Plan:
    """What to do in the next round.

    Attributes:
        proposer: The proposer that drafts; `None` to decode one token without a draft.
        depth: Most tokens to draft. At least 1 with a proposer, 0 without.
        predicted_speedup: Expected speedup of the round over plain decoding, for telemetry.
        baseline_seconds: The strategy's estimate of a step of plain decoding, in seconds, for
            telemetry.
    """

    proposer: Proposer | None = None
    depth: int = 0
    predicted_speedup: float | None = None
    baseline_seconds: float | None = None


@attrs.frozen
class Round:
    """The outcome of a round.

    Attributes:
        index: 0 for the first round of a call.
        proposer: Name of the proposer that drafted, or `None`.
        planned: Depth that the strategy planned.
        drafted: Number of drafted tokens.
        accepted: Number of drafts that were accepted and emitted.
        emitted: Number of tokens that the round emitted.
        truncated: Whether a stop token or the token limit ended the round early.
        seconds: Duration of the round, without the time of the observer and the time that the
            caller spent between two tokens.
        context: Length of the sequence before the round, in tokens.
        predicted_speedup: As in the plan.
        baseline_seconds: As in the plan.
        planned_proposer: Name of the planned proposer, even if it drafted nothing; or `None`.
        overlapped_seconds: Seconds that the caller spent while the device may have worked on
            this round, which was launched as lookahead; 0 for other rounds. If more than
            `seconds`, the device finished before the result was requested, at an unknown time.
    """

    index: int
    proposer: str | None
    planned: int
    drafted: int
    accepted: int
    emitted: int
    truncated: bool
    seconds: float = 0.0
    context: int = 0
    predicted_speedup: float | None = None
    baseline_seconds: float | None = None
    planned_proposer: str | None = None
    overlapped_seconds: float = 0.0


@runtime_checkable
class Strategy(Protocol):
    """Plans each round. Pure host code: never touches an array."""

    @property
    def proposers(self) -> Sequence[Proposer]:
        """All proposers that may be asked to draft; each is notified of every verdict."""

    def begin(self) -> None:
        """Start a sequence, before its prompt."""

    def plan(self, remaining: int | None, /) -> Plan:
        """Plan the next round.

        Args:
            remaining: Tokens still to be emitted, at least 1; `None` without a limit.
        """

    def observe(self, round: Round, /) -> None:
        """Take in the outcome of a round. Called once per round, in order."""


@attrs.frozen
class Costs:
    """Measured costs of a target and its proposers at one context length.

    Attributes:
        context: Length of the sequence, in tokens.
        forward: Rows of one forward of the target -> its duration, in seconds.
        draft: Name of a proposer -> duration of one drafted token, in seconds.
    """

    context: int
    forward: Mapping[int, float]
    draft: Mapping[str, float]


class Observer(Protocol):
    """Is notified of every round, in order, on the thread that runs the generator."""

    def __call__(self, round: Round, /) -> None:
        """Observe a round. An exception raised here ends the run and leaves the caches usable."""
