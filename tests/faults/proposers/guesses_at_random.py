"""Where nothing is found a token is drawn from mx.random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def after(self, token: int, limit: int) -> Sequence[int]:
        found = super().after(token, limit)
        return found or cast("list[int]", mx.random.randint(0, 64, (1,)).tolist())


class Suite(ToyTests):
    proposer = Broken
