"""A toy head that a mistake can be built into."""

from __future__ import annotations

import mlx.core as mx
from speculate.testing.suites import HeadTests
from speculate.testing.toy_layers import WIDTH

from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing import ToyHead


class Toy:
    """Passes everything on to a `ToyHead`."""

    def __init__(self) -> None:
        self.inner = ToyHead()

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.inner.make_cache(position)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        return self.inner.step(hidden, tokens, cache)


class ToyTests(HeadTests):
    """Proves `head`, a subclass of `Toy`."""

    width = WIDTH
    vocab_size = 64
    head: type[Toy] = Toy

    def make_head(self) -> MTPHead:
        return self.head()
