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
    if isinstance(proposer, SpeculativeModel | Strategy | Sequence | dict) or not _named(proposer):
        raise OptionError(
            f"proposer: {type(proposer).__name__} is not a proposer: pass MTPChain(), "
            "DraftModel(draft) or PromptLookup(), and several as separate arguments"
        )


def _named(proposer: object) -> bool:
    """Whether it has a name, as every proposer does; a wrapper may delegate to another object."""
    try:
        return isinstance(cast(Proposer, proposer).name, str)
    except AttributeError:
        return False


def checked_outlook(proposer: Proposer, outlook: object) -> Outlook:
    """Return the result of `outlook()` if it is valid.

    Raises:
        SpeculateError: It is not.
    """
    if not isinstance(outlook, Outlook):
        raise _wrong_type(proposer, "outlook()", outlook, "an Outlook")
    kind, length = outlook.kind, outlook.length
    if not _whole(kind, MAX_KIND):
        raise _out_of_range(proposer, "Outlook.kind", kind, f"from 0 to {MAX_KIND}")
    if not _whole(length):
        raise _out_of_range(proposer, "Outlook.length", length, "0 or more")
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
        kind, position, compared, right = found.kind, found.position, found.compared, found.right
        if not _whole(kind, MAX_KIND):
            raise _out_of_range(proposer, "Hindsight.kind", kind, f"from 0 to {MAX_KIND}")
        if not _whole(position, MAX_KIND):
            raise _out_of_range(proposer, "Hindsight.position", position, f"from 0 to {MAX_KIND}")
        if not _whole(compared):
            raise _out_of_range(proposer, "Hindsight.compared", compared, "0 or more")
        if not _whole(right, compared):
            raise _out_of_range(
                proposer, "Hindsight.right", right, f"from 0 to compared, {compared}"
            )
    return hindsight


def checked_behind(proposer: Proposer, behind: object) -> int:
    """Return the result of `behind()` if it is valid.

    Raises:
        SpeculateError: It is not.
    """
    if not (isinstance(behind, int) and behind >= 0):
        raise _out_of_range(proposer, "behind()", behind, "0 or more")
    return behind


def _whole(value: object, most: int | None = None) -> bool:
    """Whether it is an integer from 0 to `most`."""
    return isinstance(value, int) and value >= 0 and (most is None or value <= most)


def _wrong_type(proposer: Proposer, what: str, found: object, wanted: str) -> SpeculateError:
    kind = type(found).__name__
    return SpeculateError(f"proposer '{proposer.name}': {what} must return {wanted}, not {kind}")


def _out_of_range(proposer: Proposer, what: str, value: object, wanted: str) -> SpeculateError:
    return SpeculateError(
        f"proposer '{proposer.name}' reports {what} {value!r}: it must be an integer, {wanted}"
    )
