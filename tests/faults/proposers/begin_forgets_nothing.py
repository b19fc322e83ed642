"""A new text is looked up in the old one."""

from __future__ import annotations

from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def begin(self, position: int, /) -> None:
        self.unseen = position - len(getattr(self, "text", []))
        self.text: list[int] = getattr(self, "text", [])


class Suite(ToyTests):
    proposer = Broken
