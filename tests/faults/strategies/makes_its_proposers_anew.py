"""`proposers` makes new ones each time, which never hear of the text."""

from __future__ import annotations

from collections.abc import Sequence

from speculate import PromptLookup
from speculate.protocols import Proposer
from tests.faults.strategies.toys import Toy, ToyTests


class Broken(Toy):
    @property
    def proposers(self) -> Sequence[Proposer]:
        return (PromptLookup(),)


class Suite(ToyTests):
    strategy = Broken
