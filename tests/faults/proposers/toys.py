"""Proposers that a mistake can be built into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
from speculate.testing.suites import ProposerTests

from speculate import DraftModel, SpeculativeModel
from speculate.protocols import Choose, Commit, Draft, Proposer
from speculate.testing import ToyModel


class Passing:
    """Passes everything on to a draft model."""

    def __init__(self) -> None:
        self.inner: Proposer = DraftModel(ToyModel(1))

    @property
    def name(self) -> str:
        return self.inner.name

    def attach(self, target: SpeculativeModel, /) -> None:
        self.inner.attach(target)

    def begin(self, position: int, /) -> None:
        self.inner.begin(position)

    def position(self) -> int:
        return self.inner.position()

    def commit(self, commit: Commit, /) -> None:
        self.inner.commit(commit)

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        return self.inner.propose(newest, limit, choose)

    def settle(self) -> None:
        self.inner.settle()


class Lookup:
    """Drafts what came after the newest token the last time."""

    name = "lookup"

    def __init__(self) -> None:
        self.begin(0)

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, /) -> None:
        self.unseen = position
        self.text: list[int] = []

    def position(self) -> int:
        return self.unseen + len(self.text)

    def commit(self, commit: Commit, /) -> None:
        self.text += commit.ids

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        return Draft(mx.array([*self.after(cast(int, newest.item()), limit)], dtype=mx.uint32))

    def after(self, token: int, limit: int) -> Sequence[int]:
        """What to draft."""
        places = [place for place, other in enumerate(self.text) if other == token]
        return self.text[places[-1] + 1 :][:limit] if places else []

    def settle(self) -> None:
        """Has no cache."""


class ToyTests(ProposerTests):
    """Proves what `proposer` makes."""

    proposer: Callable[[], Proposer] = Lookup

    def make_proposer(self) -> Proposer:
        return type(self).proposer()
