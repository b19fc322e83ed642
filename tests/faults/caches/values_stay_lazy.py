"""`arrays` leaves the values out: they stay lazy, and no other thread can evaluate them."""

from __future__ import annotations

import mlx.core as mx

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    def arrays(self) -> list[mx.array]:
        return super().arrays()[:1]


class Suite(RowTests):
    cache = Broken
