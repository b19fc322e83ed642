"""The position does not count what was accepted."""

from __future__ import annotations

from speculate.protocols import Commit
from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    lost = 0

    def begin(self, position: int, /) -> None:
        super().begin(position)
        self.lost = 0

    def commit(self, commit: Commit, /) -> None:
        super().commit(commit)
        self.lost += 0 if commit.verdict is None else commit.verdict.accepted

    def position(self) -> int:
        return super().position() - self.lost


class Suite(ToyTests):
    proposer = Broken
