"""What decides who drafts, and how much."""

from collections.abc import Mapping, Sequence

import attrs
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.proposer import Proposer


@attrs.frozen
class Plan:
    """What to do in the next round.

    Attributes:
        proposer: Who drafts; `None` to decode one token without a draft.
        depth: Most tokens to draft. At least 1 with a proposer, 0 without.
        confidence: Also read how likely the proposer itself found each token it drafted.
            Comes with the round's one synchronisation.
        predicted: Speedup over plain decoding that is expected of the round, for telemetry.
        plain_seconds: Time of a step of plain decoding as the strategy knows it, likewise.
    """

    proposer: Proposer | None = None
    depth: int = 0
    confidence: bool = False
    predicted: float | None = None
    plain_seconds: float | None = None


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
        seconds: Time that the round took, without the time that the observer took, and that
            the caller let pass between two tokens.
        context: Tokens of text in front of the round.
        confidence: Probability that the proposer gave each token it drafted, where the plan
            asked for it and the proposer picks from logits.
        predicted: As in the plan.
        plain_seconds: As in the plan.
        asked: Name of whoever was asked to draft, also where it abstained; or `None`.
        ahead: Seconds that the caller let pass while the device may have worked on the round,
            which was launched ahead; 0 for any other. Where they are more than `seconds`, the
            device was done before anybody asked, and nobody can tell when.
    """

    index: int
    proposer: str | None
    planned: int
    drafted: int
    accepted: int
    emitted: int
    cut: bool
    seconds: float = 0.0
    context: int = 0
    confidence: Sequence[float] = ()
    predicted: float | None = None
    plain_seconds: float | None = None
    asked: str | None = None
    ahead: float = 0.0


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


@attrs.frozen
class Costs:
    """What was measured of a target and those who draft for it, at one context length.

    Attributes:
        context: Tokens of text in front.
        forward: Rows of one forward of the target -> its time, in seconds.
        draft: Name of a proposer -> time of one drafted token, in seconds.
    """

    context: int
    forward: Mapping[int, float]
    draft: Mapping[str, float]


@runtime_checkable
class UsesCosts(Strategy, Protocol):
    """A strategy that wants to know what forwards and drafts cost."""

    def missing_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        """Whether to measure now: asked of each text that has a second round, before that.

        So no first token waits for it, and the first plan is made without.

        Args:
            key: Tells the target, its proposers and this machine apart from others; `None`
                where the model cannot be told apart.
            context: Tokens of text in front.
            remaining: Tokens to emit at most; `None` without a limit.
        """

    def take_costs(self, costs: Costs, /) -> None:
        """What was measured, where it was missing."""


@runtime_checkable
class ToleratesFailures(Strategy, Protocol):
    """A strategy that can go on without a proposer that raised."""

    def begin(self) -> None:
        """A text begins, in front of its prompt: whoever raised in another takes part again."""

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        """`proposer` raised `error`, and is neither told nor asked again in this text."""


class Observer(Protocol):
    """Hears every round, in order, on the thread that runs the generator."""

    def __call__(self, round: Round, /) -> None:
        """An exception raised here ends the run, and leaves the caches usable."""
