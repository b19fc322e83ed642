"""Each draft comes with the law of the next."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Choose, Draft
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        draft = super().propose(newest, limit, choose)
        return Draft(draft.tokens, [*draft.laws[1:], *draft.laws[:1]])


class Suite(ToyTests):
    proposer = Broken
