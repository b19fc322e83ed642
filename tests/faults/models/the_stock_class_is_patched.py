"""Adapting a model replaces a method of its class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from speculate.testing.suites import ModelTests

from speculate import SpeculativeModel
from speculate.models.adapter import DenseAdapter
from speculate.protocols import Forward, StockModel
from tests import tiny
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    walk = DenseAdapter._walk

    def patching(self: DenseAdapter, tokens: mx.array, cache: Sequence[object]) -> Forward:
        layer: Any = type(self.layers[0])
        call = layer.__call__
        if not getattr(call, "ours", False):

            def ours(*args: Any, **kwargs: Any) -> Any:
                return call(*args, **kwargs)

            ours.ours = True  # type: ignore[attr-defined]
            patch.setattr(layer, "__call__", ours)
        return walk(self, tokens, cache)

    patch.setattr(DenseAdapter, "_walk", patching)


class Suite(ModelTests):
    def __init__(self) -> None:
        self._stock: Any = tiny.dense()

    def make_model(self) -> SpeculativeModel:
        return DenseAdapter(self._stock)

    def stock_model(self) -> StockModel:
        stock: StockModel = self._stock
        return stock
