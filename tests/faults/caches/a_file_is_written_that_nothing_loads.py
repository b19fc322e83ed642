"""mlx-lm saves a cache under the name of a class that it does not know."""

from __future__ import annotations

from mlx_lm.models.cache import KVCache

from tests.faults.caches.rows import Rows, RowTests


class Broken(Rows):
    state = KVCache.state


class Suite(RowTests):
    cache = Broken
