"""What a lookup would have been worth is counted once a round."""

from __future__ import annotations

from collections.abc import Sequence

from speculate import PromptLookup
from speculate.protocols import Hindsight, Outlook
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def __init__(self) -> None:
        self.inner = self.lookup = PromptLookup()

    def outlook(self) -> Outlook:
        return self.lookup.outlook()

    def hindsight(self) -> Sequence[Hindsight]:
        return self.lookup.hindsight()[:1]


class Suite(ToyTests):
    proposer = Broken
