"""Validation of proposers passed to a strategy, and of the numbers that they report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from speculate.errors import OptionError, SpeculateError
from speculate.protocols import Hindsight, Outlook, Proposer, SpeculativeModel, Strategy

MAX_KIND: Final = 4095
"""Largest kind or position that a proposer may report. Rates are kept for each of them."""


def check_proposer(proposer: object) -> None:
    """Raise for anything that is not a proposer: a model, a list, or a class.

    Raises:
        OptionError: It is not a proposer.
    """
    if isinstance(proposer, type):
        raise OptionError(f"proposer: {proposer.__name__} is a class: pass an instance of it")
    # A wrapper may delegate to another object, but every proposer has a name.
    named = isinstance(getattr(proposer, "name", None), str)
    if not named or isinstance(proposer, SpeculativeModel | Strategy | Sequence | dict):
        raise OptionError(
            f"proposer: {type(proposer).__name__} is not a proposer: pass MTPChain(), "
            "DraftModel(draft) or PromptLookup(), and several as separate arguments"
        )


def checked_outlook(proposer: Proposer, outlook: object) -> Outlook:
    """Return the result of `outlook()` if it is valid.

    Raises:
        SpeculateError: It is not.
    """
    if not isinstance(outlook, Outlook):
        raise _wrong_type(proposer, "outlook()", outlook, "an Outlook")
    _check_count(proposer, "Outlook.kind", outlook.kind, MAX_KIND)
    _check_count(proposer, "Outlook.length", outlook.length)
    return outlook


def checked_hindsight(proposer: Proposer, hindsight: object) -> Sequence[Hindsight]:
    """Return the result of `hindsight()` if it is valid.

    Raises:
        SpeculateError: It is not.
    """
    if not isinstance(hindsight, Sequence):
        raise _wrong_type(proposer, "hindsight()", hindsight, "a list")
    for found in hindsight:
        if not isinstance(found, Hindsight):
            raise _wrong_type(proposer, "hindsight()", found, "a Hindsight")
        _check_count(proposer, "Hindsight.kind", found.kind, MAX_KIND)
        _check_count(proposer, "Hindsight.position", found.position, MAX_KIND)
        _check_count(proposer, "Hindsight.compared", found.compared)
        _check_count(proposer, "Hindsight.right", found.right, found.compared, "compared, ")
    return hindsight


def checked_behind(proposer: Proposer, behind: object) -> int:
    """Return the result of `behind()` if it is valid.

    Raises:
        SpeculateError: It is not.
    """
    _check_count(proposer, "behind()", behind)
    return cast(int, behind)


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
