"""When a proposer takes in what it was told: at once, with its next draft, or not yet."""

from __future__ import annotations

from typing import Final

PROMPT: Final = 64
"""A commit of so many tokens is part of a prompt. It is taken in at once, as the target does."""

FLUSH: Final = 1024
"""Tokens that may wait for the next draft, before they are taken in without one.

Who is not asked again until the text ends never pays for them. More would make the next draft wait
long, and hidden states that wait take memory.
"""

BATCHED: Final = 12
"""Most waiting tokens that share a forward with the first token of a draft.

The forward computes logits for each of them, and keeps what it takes to take them back.
"""


def is_due(told: int, waiting: int) -> bool:
    """Whether what waits is to be taken in now.

    Args:
        told: Tokens of the newest commit.
        waiting: Tokens that wait, these included.
    """
    return told >= PROMPT or waiting >= FLUSH


def behind(waiting: int) -> int:
    """Tokens that have to be taken in before the next draft; see `CatchesUp`."""
    return waiting if waiting > BATCHED else 0
