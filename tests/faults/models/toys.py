"""A toy model that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from speculate.protocols import Forward, MTPHead, Rollbackable, SpeculativeModel, StockModel
from speculate.testing.suites import ModelTests
from speculate.testing.toy import ToyModel


class Toy:
    """Passes everything on to a `ToyModel`."""

    def __init__(self) -> None:
        self.inner = ToyModel()

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.inner.eos_token_ids

    @property
    def head(self) -> MTPHead | None:
        return None

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return None

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(max_kv_size, position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return self.inner.adopt(cache)

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        return self.inner.forward(tokens, cache)


class Stock:
    """The `ToyModel` as mlx-lm would have it."""

    def __init__(self) -> None:
        self.inner = ToyModel()
        self.layers: list[object] = []

    def __call__(self, inputs: mx.array, /, cache: list[object] | None = None) -> mx.array:
        caches = self.inner.make_cache() if cache is None else cache
        return self.inner.forward(inputs, caches).logits

    def named_modules(self) -> list[tuple[str, object]]:
        return []


class ToyTests(ModelTests):
    """Proves `model`, a subclass of `Toy`."""

    model: type[Toy] = Toy

    def make_model(self) -> SpeculativeModel:
        return self.model()

    def stock_model(self) -> StockModel:
        return Stock()
