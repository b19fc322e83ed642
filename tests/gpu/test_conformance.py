"""Everything against the contracts of the conformance kit, as far as rounding allows."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx
import pytest

import speculate as sp
from speculate import SpeculativeModel
from speculate.protocols import MTPHead, Proposer
from speculate.testing import HeadTests, ModelTests, ProposerTests, ToyHead, ToyModel
from speculate.testing.toy import WIDTH

# What follows computes in whole numbers, or looks at single rows: it holds bit for bit.
from tests.backends.test_kinds import TestHybrid as TestHybrid
from tests.backends.test_kinds import TestQuantisedRows as TestQuantisedRows
from tests.backends.test_kinds import TestState as TestState
from tests.backends.test_kinds import TestWindow as TestWindow
from tests.backends.test_kinds import TestWindowWithSinks as TestWindowWithSinks
from tests.sampling.test_conformance import TestBlocks as TestBlocks
from tests.sampling.test_conformance import TestCallable as TestCallable
from tests.sampling.test_conformance import TestCoupled as TestCoupled
from tests.sampling.test_conformance import TestCoupledWithAllFilters as TestCoupledWithAllFilters
from tests.sampling.test_conformance import TestRejection as TestRejection
from tests.support import gpu_models


class Rounded:
    """A suite whose tolerance is that of the machine."""

    tolerance: float

    @pytest.fixture(autouse=True)
    def measured(self, tolerance: float) -> None:
        self.tolerance = tolerance


class Family(Rounded, ModelTests):
    name: ClassVar[str]

    @pytest.fixture(autouse=True)
    def chosen(self, tolerance: float) -> None:
        self.model = gpu_models.usable(self.name, tolerance)

    def make_model(self) -> SpeculativeModel:
        return self.model


class TestStatesPicked(Family):
    name = "hybrid, states picked"


class TestFoldedReplay(Family):
    name = "hybrid, folded replay"


class TestExpertsStatesPicked(Family):
    name = "hybrid with experts, states picked"


class TestExpertsFoldedReplay(Family):
    name = "hybrid with experts, folded replay"


class TestWindowed(Family):
    name = "windowed with experts"


class TestDense(Family):
    name = "dense"


class TestShortConvolutions(Family):
    name = "short convolutions"
    whole_blocks = True


class TestToyHead(Rounded, HeadTests):
    width = WIDTH
    vocab_size = 64

    def make_head(self) -> MTPHead:
        return ToyHead()


class TestBundledHead(Rounded, HeadTests):
    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        model = gpu_models.model("bundled hybrid")
        assert model.head is not None
        self.head, self.vocab_size = model.head, model.vocab_size
        hidden = model.forward(mx.array([[1]]), model.make_cache()).hidden
        self.width, self.dtype = hidden.shape[-1], hidden.dtype

    def make_head(self) -> MTPHead:
        return self.head


class TestToyChain(Rounded, ProposerTests):
    def make_proposer(self) -> Proposer:
        return sp.MTPChain()


class TestBundledChain(TestToyChain):
    def target(self) -> SpeculativeModel:
        return gpu_models.model("bundled hybrid")


class TestToyDraft(Rounded, ProposerTests):
    def make_proposer(self) -> Proposer:
        return sp.DraftModel(ToyModel(1))


class TestLookup(Rounded, ProposerTests):
    def make_proposer(self) -> Proposer:
        return sp.PromptLookup()
