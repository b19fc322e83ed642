"""Sampling whose text depends on the seed and not on the drafts.

The target's token at a position is the maximum of its scores plus Gumbel noise that only
the seed and the position decide. A proposer adds the same noise to its own scores, so that
similar laws pick the same token most of the time. A draft of token i stands with
probability `sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)` (Daliri, Musco and Suresh, "Coupling
without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx

from speculate.protocols import Choice
from speculate.sampling.law import Law
from speculate.sampling.noise import gumbel, key

TOKENS: Final = 1
"""The stream of the noise that decides tokens."""


@final
class Coupled:
    """Picks by shared noise.

    Args:
        law: Filters, temperature and seed of the text.
    """

    def __init__(self, law: Law) -> None:
        self._law = law

    def choose(self, logits: mx.array, position: int, /) -> Choice:
        return Choice(self.pick(logits, [position]))

    def pick(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        scores = self._law.scores(logits, positions)
        keys = [key(self._law.seed, TOKENS, position) for position in positions]
        return mx.argmax(scores + gumbel(keys, logits.shape[-1]), axis=-1)
