"""A toy model that a mistake can be built into."""

from __future__ import annotations

import mlx.core as mx
from speculate.testing.suites import ModelTests

from speculate import SpeculativeModel
from speculate.protocols import StockModel
from speculate.testing import ToyModel
from tests.decoding.watched import PassingModel


class Toy(PassingModel):
    """Passes everything on to a `ToyModel`."""

    def __init__(self) -> None:
        self.toy = ToyModel()
        super().__init__(self.toy)


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
