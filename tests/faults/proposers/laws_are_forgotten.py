"""Drafts are drawn, and said to be certain."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Choose, Draft
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        return Draft(super().propose(newest, limit, choose).tokens)


class Suite(ToyTests):
    proposer = Broken
