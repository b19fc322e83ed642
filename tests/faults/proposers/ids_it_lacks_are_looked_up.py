"""A draft model is fed ids that it does not have."""

from __future__ import annotations

from collections.abc import Iterable

from speculate.testing.suites import ProposerTests

from speculate import DraftModel, SpeculativeModel
from speculate.proposers import draft_model
from speculate.protocols import Proposer
from speculate.testing import ToyModel
from tests.faults.planting import Patch
from tests.proposers.test_unknown_ids import Strict


def plant(patch: Patch) -> None:
    def anything(model: SpeculativeModel, ids: Iterable[int]) -> list[int]:
        return list(ids)

    patch.setattr(draft_model, "known_to", anything)


class Suite(ProposerTests):
    def make_proposer(self) -> Proposer:
        return DraftModel(Strict(ToyModel(1, vocab_size=52)))
