"""Every backend, alone and in a list with others, against the contracts of the kit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from speculate.backends.adopt import adopt
from speculate.protocols import Rollbackable
from speculate.testing import CacheTests
from speculate.testing.layers import AttentionLayer, CacheListLayer, Layer, StateLayer


class Adopted(CacheTests):
    """Backends are what `adopt` makes of mlx-lm's caches."""

    def make_cache(self) -> Rollbackable:
        return self.make_caches()[0]

    def adopt(self, stock: object, /) -> Rollbackable:
        return adopt([stock])[0]

    def make_caches(self) -> list[Rollbackable]:
        return adopt(self.stock())

    def adopt_caches(self, stock: Sequence[object]) -> list[Rollbackable]:
        return adopt(stock)

    def stock(self) -> list[object]:
        """Caches of mlx-lm."""
        return [KVCache()]


class TestRows(Adopted):
    """Full attention."""


class TestQuantisedRows(Adopted):
    def stock(self) -> list[object]:
        return [QuantizedKVCache(group_size=32, bits=8)]


class TestWindow(Adopted):
    def stock(self) -> list[object]:
        return [RotatingKVCache(max_size=8)]


class TestWindowOfOne(Adopted):
    def stock(self) -> list[object]:
        return [RotatingKVCache(max_size=1)]


class TestWindowWithSinks(Adopted):
    prefill_differs = True

    def stock(self) -> list[object]:
        return [RotatingKVCache(max_size=8, keep=4)]


class TestState(Adopted):
    records: ClassVar[bool] = True

    def stock(self) -> list[object]:
        return [ArraysCache(2)]

    def layers(self) -> Sequence[Layer]:
        return [StateLayer(records=self.records)]


class TestStateWithoutRecords(TestState):
    records = False
    whole_blocks = True


class TestList(Adopted):
    records: ClassVar[bool] = True

    def stock(self) -> list[object]:
        return [CacheList(ArraysCache(2), KVCache())]

    def layers(self) -> Sequence[Layer]:
        return [CacheListLayer([StateLayer(records=self.records), AttentionLayer()])]


class TestListWithoutRecords(TestList):
    records = False
    whole_blocks = True


class TestHybrid(Adopted):
    records: ClassVar[bool] = True

    def stock(self) -> list[object]:
        return [ArraysCache(2), KVCache(), RotatingKVCache(max_size=8)]

    def layers(self) -> Sequence[Layer]:
        return [StateLayer(records=self.records), AttentionLayer(), AttentionLayer()]


class TestHybridWithoutRecords(TestHybrid):
    records = False
    whole_blocks = True


KINDS = (
    TestRows,
    TestQuantisedRows,
    TestWindow,
    TestWindowOfOne,
    TestWindowWithSinks,
    TestState,
    TestStateWithoutRecords,
    TestList,
    TestListWithoutRecords,
    TestHybrid,
    TestHybridWithoutRecords,
)


@pytest.mark.soak
@pytest.mark.parametrize("suite", KINDS)
def test_any_order_for_long(suite: type[Adopted]) -> None:
    for number in range(4):
        suite().test_operations_in_any_order_keep_the_sequence(examples=100, steps=60, seed=number)
