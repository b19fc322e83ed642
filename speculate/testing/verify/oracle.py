"""What a text's logits ought to be: mlx-lm's own model says, which is fed and never taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

import mlx.core as mx

from speculate.protocols import SpeculativeModel, StockModel
from speculate.testing.verify.rounding import apart

CHUNK: Final = 2048
"""Tokens that are fed at once where no logits are asked for."""

WIDTHS: Final = (1, 2, 3, 5, 9)
"""Of the blocks whose rounding is compared."""


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
        caches = self.caches()
        for start in range(0, first, CHUNK):
            # Nobody evaluates these logits, and so nobody computes them.
            self.feed(ids[start : min(start + CHUNK, first)], caches)
        logits = self.feed(ids[first:], caches)
        mx.eval(logits)
        return logits

    def blocks(self, ids: Sequence[int], widths: Iterable[int]) -> mx.array:
        """Logits of a text that is fed in blocks, `(T, vocabulary)` for as many as these are."""
        caches, start, rows = self.caches(), 0, []
        for width in widths:
            rows.append(self.feed(ids[start : start + width], caches))
            start += width
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
        for width in WIDTHS:
            length = min(len(ids), window) if window and width == 1 else len(ids)
            found = self.blocks(ids[:length], [width] * (length // width))
            worst = max(worst, *apart(found, whole[: found.shape[0]]))
        return worst


def row(ids: Sequence[int]) -> mx.array:
    """Tokens as a model is fed, `(1, T)`."""
    return mx.array([list(ids)], dtype=mx.uint32)
