"""Where a lookup finds nothing, it says so with a kind of -1."""

from __future__ import annotations

from collections.abc import Sequence

from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import Hindsight, Outlook
from tests.faults.proposers.toys import Passing, ToyTests


class Broken(Passing):
    def __init__(self) -> None:
        self.inner = self.lookup = PromptLookup()

    def outlook(self) -> Outlook:
        found = self.lookup.outlook()
        return found if found.length else Outlook(-1, 0)

    def hindsight(self) -> Sequence[Hindsight]:
        return self.lookup.hindsight()


class Suite(ToyTests):
    proposer = Broken
