"""What waits is counted on, also when it was taken in."""

from __future__ import annotations

from speculate.protocols import Commit
from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    waiting = 0

    def commit(self, commit: Commit, /) -> None:
        super().commit(commit)
        self.waiting += commit.tokens.shape[0]

    def behind(self) -> int:
        return self.waiting


class Suite(ToyTests):
    proposer = Broken
