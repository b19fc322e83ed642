"""When a proposer takes in what it was told: at once, with its next draft, or not yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx

PROMPT: Final = 64
"""A commit of so many tokens is part of a prompt. It is taken in at once, as the target does."""

FLUSH: Final = 1024
"""Tokens that may wait for the next draft, before they are taken in without one.

Who is not asked again until the text ends never pays for them. More would make the next draft wait
long, and hidden states that wait take memory.
"""

CHUNK: Final = 2048
"""Most waiting tokens that are taken in with one forward, as of a prompt."""

BATCHED: Final = 12
"""Most waiting tokens that share a forward with the first token of a draft.

The forward computes logits for each of them, and keeps what it takes to take them back.
"""


@final
class Backlog:
    """Tokens that were told and are not taken in yet.

    They wait on the host: arrays would have to be computed by then, or could not be in a thread
    where the streams of this one are not known.

    Attributes:
        ids: In text order.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []

    def add(self, ids: Sequence[int]) -> None:
        """More tokens."""
        self.ids += ids

    def tokens(self) -> mx.array:
        """All of them, `(n,)` uint32."""
        return mx.array(self.ids, dtype=mx.uint32)

    def first(self) -> mx.array:
        """As many of them as one forward takes in, `(n,)` uint32."""
        return mx.array(self.ids[:CHUNK], dtype=mx.uint32)

    def before(self, newest: mx.array) -> mx.array:
        """All of them, and `newest` `(1,)` behind."""
        return mx.concatenate([self.tokens(), newest]) if self.ids else newest

    def should_flush(self, told: int) -> bool:
        """Whether all of them are to be taken in now, behind a commit of so many tokens."""
        return told >= PROMPT or len(self.ids) >= FLUSH

    def behind(self) -> int:
        """Tokens that have to be taken in before the next draft; see `CatchesUp`."""
        return len(self.ids) if len(self.ids) > BATCHED else 0
