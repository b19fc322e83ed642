"""Drafts get into the text that is looked at, right or wrong."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.proposers.toys import Lookup, ToyTests


class Broken(Lookup):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def after(self, token: int, limit: int) -> Sequence[int]:
        text = self.text
        self.text = [*text, *self.seen]
        drafted = super().after(token, limit)
        self.text = text
        self.seen += drafted[:1]
        return drafted


class Suite(ToyTests):
    proposer = Broken
