"""A kind of cache, the layers that use it, and what they ought to see."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import final

import mlx.core as mx

from speculate.backends.group import group_of
from speculate.protocols import Rollbackable
from speculate.testing.layers import VOCAB, Layer

Adopt = Callable[[Sequence[object]], list[Rollbackable]]


class PartFailedError(Exception):
    """What a layer raises that was told to fail."""


@final
class CacheKind:
    """One kind of cache, with the layers that use it.

    Args:
        make: Fresh, empty caches of one group.
        layers: One for each of them.
        adopt: Moves mlx-lm's caches into such ones.
        whole_blocks: Only whole blocks can be taken back.
        prefill_differs: Of a block that is not recorded, mlx-lm shows the rows less than of
            single steps, as it does of a window with sinks.
    """

    def __init__(
        self,
        make: Callable[[], list[Rollbackable]],
        layers: Sequence[Layer],
        adopt: Adopt,
        *,
        whole_blocks: bool = False,
        prefill_differs: bool = False,
    ) -> None:
        self.make = make
        self.layers: list[Layer] = list(layers)
        self.adopt = adopt
        self.whole_blocks = whole_blocks
        self.prefill_differs = prefill_differs
        self._dice = random.Random(0)
        self._text: list[int] = []
        self._stock: list[object] = []
        self._expected: list[mx.array] = []

    def text(self, stop: int) -> list[int]:
        """The first tokens of the one text that all laws feed."""
        while len(self._text) < stop:
            self._text.append(self._dice.randrange(VOCAB))
        return self._text[:stop]

    def expected(self, start: int, stop: int) -> mx.array:
        """What the layers see for some tokens of the text, `(tokens, n)`.

        The oracle is what `hand_back` gives for an empty cache: mlx-lm's own type, fed token
        by token, and never taken back.
        """
        self._stock = self._stock or [cache.hand_back() for cache in self.make()]
        text = self.text(stop)
        while len(self._expected) < stop:
            tokens = mx.array([[text[len(self._expected)]]])
            self._expected.append(run(self.layers, self._stock, tokens))
            mx.eval(self._expected[-1])
        return mx.concatenate(self._expected[start:stop])


def run(layers: Sequence[Layer], caches: Sequence[object], tokens: mx.array) -> mx.array:
    """What layers see of tokens `(1, T)`, side by side: `(T, n)`."""
    seen = [layer(cache, tokens) for layer, cache in zip(layers, caches, strict=True)]
    return mx.concatenate([rows.astype(mx.float32) for rows in seen], axis=-1)


def forward(layers: Sequence[Layer], caches: Sequence[object], tokens: mx.array) -> mx.array:
    """One forward over tokens `(1, T)`, all or nothing where the caches are of one group."""
    group = group_of(caches)
    with nullcontext(tokens) if group is None else group.block(tokens) as fed:
        return run(layers, caches, fed)
