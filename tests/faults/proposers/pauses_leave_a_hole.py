"""Rounds without a draft are not taken in: the next draft looks at a text with holes."""

from __future__ import annotations

import mlx.core as mx

from speculate.protocols import Commit
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) == 1:
            hidden = commit.hidden
            commit = Commit(mx.zeros_like(commit.tokens), hidden, None, [0], commit.newest)
        super().commit(commit)


class Suite(ToyTests):
    proposer = Broken
