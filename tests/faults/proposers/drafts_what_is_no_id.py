"""Missing guesses are filled up with -1."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Choose, Draft
from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        found = super().propose(newest, limit, choose).tokens.astype(mx.int32)
        return Draft(mx.concatenate([found, mx.full((limit - found.shape[0],), -1, mx.int32)]))


class Suite(ToyTests):
    proposer = Broken
