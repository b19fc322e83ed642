"""Expected logits and tokens, computed without rewinding anything."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate._mx import row_differences, ulp
from speculate.protocols import SpeculativeModel, StockModel
from speculate.sampling.acceptance import TOKEN_STREAM
from speculate.sampling.filters import Distribution
from speculate.sampling.noise import gumbel, key
from speculate.sampling.options import Sampling
from speculate.verify.rounding import Difference, Rounding

CHUNK: Final = 2048
"""Tokens fed at once where the logits are not needed."""

NOISE_WIDTHS: Final = (1, 2, 3, 5, 9)
"""Block widths, in tokens, whose rounding is compared."""


@final
class Oracle:
    """Computes logits from fresh caches with mlx-lm's model, or without one with the adapter."""

    def __init__(self, model: SpeculativeModel, stock: StockModel | None) -> None:
        self._model = model
        self.stock = stock

    def caches(self) -> list[object]:
        """Empty caches, of mlx-lm's own types if its model is known."""
        made = self._model.make_cache()
        return [*made] if self.stock is None else [cache.release() for cache in made]

    def feed(self, ids: Sequence[int], caches: list[object]) -> mx.array:
        """Unevaluated logits of one block, `(T, vocabulary)`."""
        tokens = token_row(ids)
        if self.stock is None:
            return self._model.forward(tokens, caches).logits[0]
        return self.stock(tokens, cache=caches)[0]

    def cold(self, ids: Sequence[int], first: int = 0) -> mx.array:
        """Logits of a cold prefill from token `first` on, `(T - first, vocabulary)`."""
        return self.blocks(ids, [len(ids) - first], first)

    def blocks(self, ids: Sequence[int], widths: Sequence[int], first: int = 0) -> mx.array:
        """Evaluated logits after a prefill of `first` tokens, `(T - first, vocabulary)`.

        The blocks after the prefill have these widths in tokens, repeated as often as needed.
        """
        caches, rows = self.caches(), list[mx.array]()
        for start in range(0, first, CHUNK):
            # These logits are never evaluated, and so never computed.
            self.feed(ids[start : min(start + CHUNK, first)], caches)
        start, sizes = first, cycle(widths)
        while start < len(ids):
            rows.append(self.feed(ids[start : start + next(sizes)], caches))
            start += rows[-1].shape[0]
            mx.eval(rows[-1])
        return mx.concatenate(rows)

    def noise(self, ids: Sequence[int], window: int) -> float:
        """Largest difference among logits of one sequence fed at once, in blocks and in steps.

        Once a sliding window of so many rows has wrapped, mlx-lm stores its rows in another order
        after single steps. That difference does not come from the width of the block, so single
        steps stop at the window; it is 0 without one.
        """
        whole, worst = self.cold(ids), 0.0
        for width in NOISE_WIDTHS:
            length = min(len(ids), window) if window and width == 1 else len(ids)
            found = self.blocks(ids[:length], [width])
            worst = max(worst, *row_differences(found, whole[:length]))
        return worst

    def spread(self, ids: Sequence[int], first: int) -> list[float]:
        """Largest difference at each position from `first` on among logits fed in a dozen ways.

        Single steps over a wrapped window count here: the same rows in another order only sum
        up differently.
        """
        low = high = self.cold(ids, first)
        splits: list[tuple[int, Sequence[int]]] = [(first, [width]) for width in NOISE_WIDTHS]
        # Random blocks begin some tokens before the first compared one.
        dice, context = random.Random(0), 64
        for _ in range(6):
            splits.append((max(0, first - context), dice.choices(range(1, 10), k=context)))
        for prefill, widths in splits:
            rows = self.blocks(ids, widths, prefill)[first - prefill :]
            low, high = mx.minimum(low, rows), mx.maximum(high, rows)
            mx.eval(low, high)
        return row_differences(high, low)


@final
@attrs.frozen
class ReferenceToken:
    """The token that plain decoding emits at one position, and scores of the leading candidates.

    A score comes with the ULP of the logit it was computed from, both on the scale of logits.
    """

    token: int
    scores: Mapping[int, tuple[float, float]]

    def difference(self, position: int, found: int, rounding: Rounding, how: str) -> Difference:
        """Describe that another token was emitted here, and whether rounding explains it."""
        detail = f"{how}: token {found} instead of {self.token}"
        if found not in self.scores:
            return Difference(position, math.inf, None, "bug", detail)
        (best, unit), (other, its_unit) = self.scores[self.token], self.scores[found]
        size, unit = best - other, max(unit, its_unit)
        return Difference(position, size, size / unit, rounding.kind(size, unit), detail)


@final
class ReferenceSequence:
    """A sequence decoded token by token, past end-of-sequence ids.

    Uses a prefill and single forwards instead of a `Decoder`, so that the two share no mistake.
    Sampling is greedy, or mode "coupled" with a seed. Filters are not supported: near the edge of
    a filter rounding could do more than swap two tokens.
    """

    def __init__(
        self, model: SpeculativeModel, prompt: Sequence[int], count: int, sampling: Sampling
    ) -> None:
        self.prompt: list[int] = list(prompt)
        self.sampling = sampling
        self.tokens: list[ReferenceToken] = []
        caches, last = model.make_cache(), len(prompt) - 1
        for start in range(0, last, CHUNK):
            model.forward(token_row(prompt[start : min(start + CHUNK, last)]), caches)
        last_token = prompt[-1]
        for position in range(len(prompt), len(prompt) + count):
            logits = model.forward(token_row([last_token]), caches).logits[0]
            self.tokens.append(reference_token(logits, sampling, position))
            last_token = self.tokens[-1].token

    @property
    def ids(self) -> list[int]:
        return [each.token for each in self.tokens]


def reference_token(logits: mx.array, sampling: Sampling, position: int) -> ReferenceToken:
    """The token that plain decoding emits at a position, given logits `(1, vocabulary)`."""
    if sampling.temperature == 0:
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    else:
        seed = sampling.seed or 0
        noise = gumbel([key(seed, TOKEN_STREAM, position)], logits.shape[-1])
        scores = Distribution(sampling, seed).log_weights(logits, [position]) + noise
    # The emitted token, and candidates: rounding picks none that ranks lower.
    chosen, best = mx.argmax(scores[0]), mx.argsort(-scores[0])[:64]
    # The temperature scales the logits, and with them their rounding errors.
    scale, by_id = sampling.temperature or 1.0, dict[int, tuple[float, float]]()
    found = (best, scores[0, best], logits[0, best])
    ids, values, given = (cast("list[float]", numbers.tolist()) for numbers in found)
    for id_, score, logit in zip(ids, values, given, strict=True):
        unit = max(ulp(logit, logits.dtype), scale * ulp(score, scores.dtype))
        by_id[int(id_)] = scale * score, unit
    return ReferenceToken(cast(int, chosen.item()), by_id)


def token_row(ids: Sequence[int]) -> mx.array:
    """Ids as a model takes them, `(1, T)` uint32."""
    return mx.array([list(ids)], dtype=mx.uint32)
