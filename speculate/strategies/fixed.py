"""`Off` and `Fixed`, and how strategies validate proposers and the numbers that they report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast, final

from speculate.errors import OptionError, SpeculateError
from speculate.protocols import (
    DraftScore,
    Forecast,
    Plan,
    Proposer,
    Round,
    SpeculativeModel,
    Strategy,
)
from speculate.validation import validated_integer

MAX_DEPTH: Final = 48
"""Most tokens of a draft. Caches record 64 tokens, and a block may also hold replayed tokens."""


MAX_BUCKET: Final = 4095
"""Largest bucket or position that a proposer may report. Rates are kept for each of them."""


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


def check_proposer(proposer: object) -> None:
    """Raise `OptionError` for anything that is not a proposer: a model, a list, or a class."""
    if isinstance(proposer, type):
        raise OptionError(f"proposer: {proposer.__name__} is a class: pass an instance of it")
    # A wrapper may delegate to another object, but every proposer has a name.
    named = isinstance(getattr(proposer, "name", None), str)
    if not named or isinstance(proposer, SpeculativeModel | Strategy | Sequence | dict):
        raise OptionError(
            f"proposer: {type(proposer).__name__} is not a proposer: pass MTPChain(), "
            "DraftModel(draft) or PromptLookup(), and several as separate arguments"
        )


def checked_forecast(proposer: Proposer, forecast: object) -> Forecast:
    """Return the result of `forecast()`, or raise `SpeculateError` if it is not valid."""
    if not isinstance(forecast, Forecast):
        raise _wrong_type(proposer, "forecast()", forecast, "a Forecast")
    _check_count(proposer, "Forecast.bucket", forecast.bucket, MAX_BUCKET)
    _check_count(proposer, "Forecast.length", forecast.length)
    return forecast


def checked_scores(proposer: Proposer, scores: object) -> Sequence[DraftScore]:
    """Return the result of `scores()`, or raise `SpeculateError` if it is not valid."""
    if not isinstance(scores, Sequence):
        raise _wrong_type(proposer, "scores()", scores, "a list")
    for found in scores:
        if not isinstance(found, DraftScore):
            raise _wrong_type(proposer, "scores()", found, "a DraftScore")
        _check_count(proposer, "DraftScore.bucket", found.bucket, MAX_BUCKET)
        _check_count(proposer, "DraftScore.position", found.position, MAX_BUCKET)
        _check_count(proposer, "DraftScore.compared", found.compared)
        _check_count(proposer, "DraftScore.right", found.right, found.compared, "compared, ")
    return scores


def checked_backlog(proposer: Proposer, backlog: object) -> int:
    """Return the result of `backlog()`, or raise `SpeculateError` if it is not valid."""
    _check_count(proposer, "backlog()", backlog)
    return cast(int, backlog)


def _check_count(
    proposer: Proposer, what: str, value: object, most: int | None = None, name: str = ""
) -> None:
    """Raise for anything but an integer from 0 to `most`, which the error calls `name`."""
    if not isinstance(value, int) or value < 0 or (most is not None and value > most):
        allowed = "0 or more" if most is None else f"from 0 to {name}{most}"
        raise SpeculateError(
            f"proposer '{proposer.name}' reports {what} {value!r}: it must be an integer, {allowed}"
        )


def _wrong_type(proposer: Proposer, what: str, found: object, wanted: str) -> SpeculateError:
    kind = type(found).__name__
    return SpeculateError(f"proposer '{proposer.name}': {what} must return {wanted}, not {kind}")
