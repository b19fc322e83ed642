"""Input that is refused has got into the cache before."""

from __future__ import annotations

import mlx.core as mx
from speculate.testing.toy_layers import WIDTH

from speculate.errors import OptionError
from speculate.protocols import Forward, Rollbackable
from tests.faults.heads.toys import Toy, ToyTests


class Broken(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        if hidden.shape[:-1] != tokens.shape:
            self.inner.step(
                hidden.reshape(1, -1, WIDTH)[:, :1], tokens.reshape(1, -1)[:, :1], cache
            )
            raise OptionError("hidden and tokens do not fit")
        return self.inner.step(hidden, tokens, cache)


class Suite(ToyTests):
    head = Broken
