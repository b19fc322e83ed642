"""When a proposer takes in what it was told: at once, with its next draft, or not yet."""

from __future__ import annotations

from typing import Final, final

import mlx.core as mx

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


@final
class Waiting:
    """Tokens that were told and are not taken in yet.

    Attributes:
        blocks: Their ids as they came, `(n,)` each.
        rows: How many they are. Counted along, since every round asks.
    """

    def __init__(self) -> None:
        self.blocks: list[mx.array] = []
        self.rows: int = 0

    def add(self, tokens: mx.array) -> None:
        """More tokens, `(n,)`."""
        self.blocks.append(tokens)
        self.rows += tokens.shape[0]

    def is_due(self, told: int) -> bool:
        """Whether all of them are to be taken in now, behind a commit of so many tokens."""
        return told >= PROMPT or self.rows >= FLUSH

    def behind(self) -> int:
        """Tokens that have to be taken in before the next draft; see `CatchesUp`."""
        return self.rows if self.rows > BATCHED else 0
