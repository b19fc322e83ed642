"""Recurrent layers are replayed by a forward whose attention starts from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import CacheGroup
from tests.backends.driving import model
from tests.faults.planting import Patch
from tests.models.test_families import TestQwen35


def plant(patch: Patch) -> None:
    apply_keep, start = CacheGroup.apply_keep, CacheGroup.start
    before: list[list[mx.array | None]] = []

    def entries(group: CacheGroup) -> list[list[mx.array | None]]:
        return [m.entries() for m in group.members() if isinstance(m, RewindableArraysCache)]

    def started(self: CacheGroup) -> None:
        start(self)
        before[:] = entries(self)

    def kept(self: CacheGroup, m: int, surplus: list[int] | None, /) -> None:
        fed: Sequence[mx.array] = self._fed_tokens._blocks
        text = mx.concatenate([*fed], axis=1)[:, :m] if fed else None
        apply_keep(self, m, surplus)
        if text is not None and m and any(surplus or ()):
            scratch = model("qwen3_5").make_cache()
            states = [s for s in scratch if isinstance(s, RewindableArraysCache)]
            for state, old in zip(states, before, strict=True):
                state.cache = [*old]
            model("qwen3_5").forward(text, scratch)
            ours = [s for s in self.members() if isinstance(s, RewindableArraysCache)]
            for state, replayed in zip(ours, states, strict=True):
                state.cache = replayed.entries()
        before[:] = entries(self)

    patch.setattr(CacheGroup, "start", started)
    patch.setattr(CacheGroup, "apply_keep", kept)


Suite = TestQwen35
