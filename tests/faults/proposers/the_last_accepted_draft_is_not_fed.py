"""A draft that was accepted whole leaves its last token out of the cache."""

from __future__ import annotations

from speculate import DraftModel
from speculate.proposers._chain import Backlog
from speculate.protocols import Commit
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def commit(self, commit: Commit, /) -> None:
        verdict = commit.verdict
        if verdict is not None and verdict.proposer == self.name and verdict.accepted > 1:
            self.inner.commit(commit)
            draft = self.inner
            assert isinstance(draft, DraftModel)
            draft._backlog = Backlog()
        else:
            self.inner.commit(commit)


class Suite(ToyTests):
    proposer = Broken
