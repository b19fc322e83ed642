"""A verify block is masked as mlx-lm masks prefill, and does not see the sinks."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.base import create_causal_mask

from speculate.backends.rotating import RewindableRotatingKVCache
from tests.backends.test_kinds import TestWindowWithSinks
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    mask = RewindableRotatingKVCache.make_mask

    def stocks(self: Any, N: int, *args: Any, **kwargs: Any) -> Any:
        if N == 1:
            return mask(self, N, *args, **kwargs)
        prior = min(self.rows(), self.max_size - 1)
        return create_causal_mask(N, prior, window_size=self.max_size)

    patch.setattr(RewindableRotatingKVCache, "make_mask", stocks)


Suite = TestWindowWithSinks
