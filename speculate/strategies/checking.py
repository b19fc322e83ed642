"""Whether what is given to a strategy can draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from speculate.errors import OptionError
from speculate.protocols import Proposer, SpeculativeModel, Strategy


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
