"""A draft is as long as the lookup finds."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Choose, Draft
from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        return super().propose(newest, limit + 2, choose)


class Suite(ToyTests):
    proposer = Broken
