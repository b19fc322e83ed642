"""What is adopted stays with mlx-lm's cache as well."""

from __future__ import annotations

from typing import Any, Self

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    @classmethod
    def adopt(cls, stock: Any) -> Self:
        cache = cls()
        cache.keys, cache.values, cache.offset = stock.keys, stock.values, stock.offset
        cache.source = stock
        return cache


class Suite(RowTests):
    cache = Broken
