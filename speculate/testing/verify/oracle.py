"""What a text's logits ought to be: mlx-lm's own model says, which is fed and never taken back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, final

import mlx.core as mx

from speculate.protocols import SpeculativeModel, StockModel
from speculate.testing.verify.rounding import apart

CHUNK: Final = 2048
"""Tokens that are fed at once where no logits are asked for."""

NOISE_WIDTHS: Final = (1, 2, 3, 5, 9)
"""Of the blocks whose rounding is compared."""

DRAWN: Final = 6
"""Times that a text is fed in blocks of random widths as well, when there is a second look."""

BEFORE: Final = 64
"""Tokens in front that are then fed in such blocks, too."""


@final
class Oracle:
    """Feeds mlx-lm's model, or where there is none the model itself, from fresh caches.

    Args:
        model: Makes the caches.
        stock: The model of mlx-lm.
    """

    def __init__(self, model: SpeculativeModel, stock: StockModel | None) -> None:
        self._model = model
        self.stock = stock

    def caches(self) -> list[object]:
        """Empty ones, of mlx-lm's own types if there is a model of it."""
        made = self._model.make_cache()
        return [*made] if self.stock is None else [cache.hand_back() for cache in made]

    def feed(self, ids: Sequence[int], caches: list[object]) -> mx.array:
        """Logits `(T, vocabulary)` of one block, not evaluated."""
        tokens = row(ids)
        if self.stock is None:
            return self._model.forward(tokens, caches).logits[0]
        return self.stock(tokens, cache=caches)[0]

    def cold(self, ids: Sequence[int], first: int = 0) -> mx.array:
        """Logits of a cold prefill, `(T - first, vocabulary)`, from a token on."""
        return self.blocks(ids, [len(ids) - first], first)

    def blocks(self, ids: Sequence[int], widths: Sequence[int], first: int = 0) -> mx.array:
        """Logits of a text, `(T - first, vocabulary)`: a prefill, and the rest of it in blocks.

        Args:
            ids: The text.
            widths: Of the blocks, over and over.
            first: Tokens of the prefill.
        """
        caches, rows = self.caches(), list[mx.array]()
        for start in range(0, first, CHUNK):
            # Nobody evaluates these logits, and so nobody computes them.
            self.feed(ids[start : min(start + CHUNK, first)], caches)
        start, sizes = first, cycle(widths)
        while start < len(ids):
            rows.append(self.feed(ids[start : start + next(sizes)], caches))
            start += rows[-1].shape[0]
            mx.eval(rows[-1])
        return mx.concatenate(rows)

    def noise(self, ids: Sequence[int], window: int) -> float:
        """How far apart logits of one text are, fed at once, in small blocks, and one by one.

        Args:
            ids: The text.
            window: Rows of a sliding window. Where it has wrapped, mlx-lm holds its rows in
                another order after single steps, which is no matter of the block's width.
        """
        whole = self.cold(ids)
        worst = 0.0
        for width in NOISE_WIDTHS:
            length = min(len(ids), window) if window and width == 1 else len(ids)
            found = self.blocks(ids[:length], [width])
            worst = max(worst, *apart(found, whole[:length]))
        return worst

    def spread(self, ids: Sequence[int], first: int) -> list[float]:
        """How far apart the logits of one text are at each place, fed in a dozen ways.

        Single steps count where a window has wrapped, too: in another order the same rows add
        up to another sum, and no more than that.

        Args:
            ids: The text.
            first: Its first token whose logits are wanted.
        """
        low = high = self.cold(ids, first)
        for prefill, widths in _ways(first):
            rows = self.blocks(ids, widths, prefill)[first - prefill :]
            low, high = mx.minimum(low, rows), mx.maximum(high, rows)
            mx.eval(low, high)
        return apart(high, low)


def _ways(first: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Ways to feed a text: tokens of the prefill, and widths of the blocks behind it."""
    yield from ((first, [width]) for width in NOISE_WIDTHS)
    dice = random.Random(0)
    for _ in range(DRAWN):
        yield max(0, first - BEFORE), dice.choices(range(1, 10), k=BEFORE)


def row(ids: Sequence[int]) -> mx.array:
    """Tokens as a model is fed, `(1, T)`."""
    return mx.array([list(ids)], dtype=mx.uint32)
