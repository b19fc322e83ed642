"""A ring that mlx-lm has wrapped is taken over as its rows lie."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from tests.backends.test_kinds import TestWindow
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    def as_it_lies(self: Any, rows: mx.array) -> mx.array:
        return rows[..., : max(self._idx, min(self.offset, self.max_size)), :]

    patch.setattr(RotatingKVCache, "_temporal_order", as_it_lies)


Suite = TestWindow
