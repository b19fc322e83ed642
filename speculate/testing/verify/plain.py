"""The text that plain decoding gives, and how close every other token came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.protocols import SpeculativeModel
from speculate.sampling.acceptance import TOKEN_STREAM
from speculate.sampling.filters import Distribution
from speculate.sampling.noise import gumbel, key
from speculate.sampling.options import Sampling
from speculate.testing.verify.oracle import CHUNK, row
from speculate.testing.verify.results import Difference
from speculate.testing.verify.rounding import Rounding, ulp

KEPT: Final = 64
"""Tokens remembered at each place. Rounding does not choose one that is further behind."""


@final
@attrs.frozen
class Place:
    """How the tokens stood that could have come at one place of a text.

    Attributes:
        token: The one that came.
        standing: Score of each of the best ones, and a unit in the last place of what it was
            computed from; both as logits.
    """

    token: int
    standing: Mapping[int, tuple[float, float]]

    def difference(self, position: int, found: int, rounding: Rounding, how: str) -> Difference:
        """That another token came.

        Args:
            position: Of the place.
            found: The other token.
            rounding: What rounding can explain.
            how: It was decoded.
        """
        detail = f"{how}: token {found} instead of {self.token}"
        if found not in self.standing:
            return Difference(position, math.inf, None, "bug", detail)
        (best, unit), (other, its_unit) = self.standing[self.token], self.standing[found]
        size, unit = best - other, max(unit, its_unit)
        return Difference(position, size, size / unit, rounding.kind(size, unit), detail)


@final
class PlainText:
    """Decodes token by token, and straight on over ids that would end a text.

    By a prefill and single steps, and not by a `Decoder`: it shares no mistake with one.

    Args:
        model: The target.
        prompt: Ids.
        count: Tokens to decode.
        sampling: Greedy, or mode "coupled" with a seed; without filters, near whose edges
            rounding could do more than swap two tokens.

    Attributes:
        prompt: Ids.
        sampling: How tokens are chosen.
        places: One for each token that was decoded.
    """

    def __init__(
        self, model: SpeculativeModel, prompt: Sequence[int], count: int, sampling: Sampling
    ) -> None:
        self.prompt: list[int] = list(prompt)
        self.sampling = sampling
        self.places: list[Place] = []
        caches, last = model.make_cache(), len(prompt) - 1
        for start in range(0, last, CHUNK):
            model.forward(row(prompt[start : min(start + CHUNK, last)]), caches)
        newest = prompt[-1]
        for position in range(len(prompt), len(prompt) + count):
            logits = model.forward(row([newest]), caches).logits[0]
            self.places.append(place(logits, sampling, position))
            newest = self.places[-1].token

    @property
    def ids(self) -> list[int]:
        """The decoded tokens."""
        return [place.token for place in self.places]


def place(logits: mx.array, sampling: Sampling, position: int) -> Place:
    """What comes at a position.

    Args:
        logits: `(1, vocabulary)`.
        sampling: As in `PlainText`.
        position: In the text.
    """
    scores = _scores(logits, sampling, position)
    chosen, best = mx.argmax(scores[0]), mx.argsort(-scores[0])[:KEPT]
    # A temperature scales what the logits were, and with it what rounding did to them.
    scale = sampling.temperature or 1.0
    found = (best, scores[0, best], logits[0, best])
    ids, values, given = (cast("list[float]", numbers.tolist()) for numbers in found)
    units = [
        max(ulp(logit, logits.dtype), scale * ulp(score, scores.dtype))
        for logit, score in zip(given, values, strict=True)
    ]
    standing = {int(ids[n]): (scale * values[n], units[n]) for n in range(len(ids))}
    return Place(cast(int, chosen.item()), standing)


def _scores(logits: mx.array, sampling: Sampling, position: int) -> mx.array:
    """What the chosen token is the largest of, `(1, vocabulary)`."""
    if sampling.temperature == 0:
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    seed = sampling.seed or 0
    noise = gumbel([key(seed, TOKEN_STREAM, position)], logits.shape[-1])
    return Distribution(sampling, seed).log_weights(logits, [position]) + noise
