"""What others drafted is not taken in."""

from __future__ import annotations

from speculate.protocols import Commit
from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None or commit.verdict.proposer == self.name:
            super().commit(commit)
        else:
            self.unseen += len(commit.ids)


class Suite(ToyTests):
    proposer = Broken
