"""How likely a proposer found what it drafted."""

from __future__ import annotations

from typing import final

import mlx.core as mx

from speculate.protocols import Choice, Choose


@final
class Confidence:
    """Picks tokens as `choose` does, and notes the probability of each, on the device.

    Args:
        choose: How tokens are picked.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.noted: list[mx.array] = []

    def __call__(self, logits: mx.array, index: int, /) -> Choice:
        choice = self._choose(logits, index)
        row = logits[0].astype(mx.float32)
        self.noted.append(mx.exp(row[choice.token] - mx.logsumexp(row)))
        return choice
