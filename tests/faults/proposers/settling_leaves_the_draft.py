"""`settle` does not end the draft in flight."""

from __future__ import annotations

from speculate import DraftModel
from speculate.proposers._chain import Backlog
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def settle(self) -> None:
        draft = self.inner
        assert isinstance(draft, DraftModel)
        draft._in_flight, draft._backlog = 0, Backlog()


class Suite(ToyTests):
    proposer = Broken
