"""Logits come with rows for the tokens that were fed again in front."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import group_of
from speculate.protocols import Forward, Rollbackable
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        group = group_of(cache)
        if group is None:
            return self.inner.forward(tokens, cache)
        with group.block(tokens) as fed:
            return self.toy._walk(fed, cache)

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        caches = self.inner.make_cache(position=position)
        state = caches[1]
        assert isinstance(state, RewindableArraysCache)
        # A state that only goes back by whole blocks.
        state.record_rollback = lambda *args: None  # type: ignore[method-assign]
        return caches


class Suite(ToyTests):
    model = Broken
