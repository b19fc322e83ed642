"""Whether what is given to a strategy can draft, and whether what it tells can be true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from speculate.errors import OptionError, SpeculateError
from speculate.protocols import Hindsight, Outlook, Proposer, SpeculativeModel, Strategy

LARGEST: Final = 4095
"""Kind or position that a proposer may tell of. What is learned is kept for each of them."""


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


def checked_outlook(proposer: Proposer, outlook: object) -> Outlook:
    """What a proposer says that it would draft.

    Raises:
        SpeculateError: It cannot be true.
    """
    if not isinstance(outlook, Outlook):
        raise _no(proposer, "outlook()", outlook, "an Outlook")
    kind, length = outlook.kind, outlook.length
    if not _whole(kind, LARGEST):
        raise _nonsense(proposer, "Outlook.kind", kind, f"from 0 to {LARGEST}")
    if not _whole(length):
        raise _nonsense(proposer, "Outlook.length", length, "0 or more")
    return outlook


def checked_hindsight(proposer: Proposer, hindsight: object) -> Sequence[Hindsight]:
    """What a proposer says that its drafts would have been worth.

    Raises:
        SpeculateError: It cannot be true.
    """
    if not isinstance(hindsight, Sequence):
        raise _no(proposer, "hindsight()", hindsight, "a list")
    for found in hindsight:
        if not isinstance(found, Hindsight):
            raise _no(proposer, "hindsight()", found, "a Hindsight")
        kind, position, compared, right = found.kind, found.position, found.compared, found.right
        if not _whole(kind, LARGEST):
            raise _nonsense(proposer, "Hindsight.kind", kind, f"from 0 to {LARGEST}")
        if not _whole(position, LARGEST):
            raise _nonsense(proposer, "Hindsight.position", position, f"from 0 to {LARGEST}")
        if not _whole(compared):
            raise _nonsense(proposer, "Hindsight.compared", compared, "0 or more")
        if not _whole(right, compared):
            raise _nonsense(proposer, "Hindsight.right", right, f"from 0 to compared, {compared}")
    return hindsight


def checked_behind(proposer: Proposer, behind: object) -> int:
    """How many tokens a proposer says that it has to take in first.

    Raises:
        SpeculateError: It cannot be true.
    """
    if not (isinstance(behind, int) and behind >= 0):
        raise _nonsense(proposer, "behind()", behind, "0 or more")
    return behind


def _whole(value: object, most: int | None = None) -> bool:
    """Whether it is a whole number from 0 to `most`."""
    return isinstance(value, int) and value >= 0 and (most is None or value <= most)


def _no(proposer: Proposer, what: str, found: object, wanted: str) -> SpeculateError:
    kind = type(found).__name__
    return SpeculateError(f"proposer '{proposer.name}': {what} has to give {wanted}, not {kind}")


def _nonsense(proposer: Proposer, what: str, value: object, wanted: str) -> SpeculateError:
    return SpeculateError(
        f"proposer '{proposer.name}' tells {what} {value!r}: it has to be a whole number, {wanted}"
    )
