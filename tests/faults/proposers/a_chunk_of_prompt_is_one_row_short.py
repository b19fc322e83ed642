"""A head is fed the prompt without the row at the cut of two chunks."""

from __future__ import annotations

import mlx.core as mx

from speculate import MTPChain
from speculate.protocols import Commit
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def __init__(self) -> None:
        self.inner = MTPChain()

    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) > 1:
            hidden = mx.concatenate([commit.hidden[:, :-1], 0 * commit.hidden[:, -1:]], axis=1)
            commit = Commit(commit.tokens, hidden, None, commit.ids, commit.newest)
        self.inner.commit(commit)


class Suite(ToyTests):
    proposer = Broken
