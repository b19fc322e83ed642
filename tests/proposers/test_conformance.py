"""Every proposer, against the contracts of the conformance kit."""

from __future__ import annotations

from typing import ClassVar

from speculate import DraftModel, MTPChain, PromptLookup, SpeculativeModel
from speculate.protocols import Proposer
from speculate.testing import ProposerTests, ScriptedProposer, ToyModel
from speculate.testing.proposers import repetitive
from tests.support import reference
from tests.support.mtp_heads import with_head


class TestToyChain(ProposerTests):
    def make_proposer(self) -> Proposer:
        return MTPChain()


class TestChain(TestToyChain):
    def target(self) -> SpeculativeModel:
        return with_head("qwen3_5").model


class TestToyDraft(ProposerTests):
    def make_proposer(self) -> Proposer:
        return DraftModel(ToyModel(1))


class TestNarrowDraft(ProposerTests):
    def make_proposer(self) -> Proposer:
        return DraftModel(ToyModel(1, vocab_size=52))


class TestWideDraft(ProposerTests):
    def make_proposer(self) -> Proposer:
        return DraftModel(ToyModel(1, vocab_size=80))


class Draft(ProposerTests):
    name: ClassVar[str]

    def make_proposer(self) -> Proposer:
        return DraftModel(reference.get(self.name).model)


class TestHybridDraft(Draft):
    name = "qwen3_5"


class TestWindowedDraft(Draft):
    name = "gpt_oss"


class TestWholeBlocksDraft(Draft):
    name = "lfm2"


class TestLookup(ProposerTests):
    def make_proposer(self) -> Proposer:
        return PromptLookup()


class TestScripted(ProposerTests):
    def make_proposer(self) -> Proposer:
        return ScriptedProposer(repetitive(64), vocab_size=64)
