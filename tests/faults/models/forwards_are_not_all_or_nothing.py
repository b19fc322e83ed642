"""A forward does not say where it begins and ends, and a failed one stays half done."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.protocols import Forward
from tests.faults.models.toys import Toy, ToyTests


class Broken(Toy):
    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        return self.toy._walk(tokens, cache)


class Suite(ToyTests):
    model = Broken
