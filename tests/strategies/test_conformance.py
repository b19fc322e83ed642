"""Every strategy, against the laws of the conformance kit."""

from __future__ import annotations

from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import Strategy
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed
from speculate.strategies.off import Off
from speculate.testing.fakes import ScheduledStrategy
from speculate.testing.suites import StrategyTests
from speculate.testing.toy import ToyModel


class TestOff(StrategyTests):
    def make_strategy(self) -> Strategy:
        return Off()


class TestFixed(StrategyTests):
    def make_strategy(self) -> Strategy:
        return Fixed(MTPChain(), 3)


class TestFixedAtZero(StrategyTests):
    def make_strategy(self) -> Strategy:
        return Fixed(PromptLookup(), 0)


class TestAdaptive(StrategyTests):
    def make_strategy(self) -> Strategy:
        return Adaptive(MTPChain(), DraftModel(ToyModel(1)), PromptLookup(), measure=False)


class TestAdaptiveByATable(StrategyTests):
    def make_strategy(self) -> Strategy:
        return Adaptive(MTPChain(), PromptLookup(), clock="fixed")


class TestScheduled(StrategyTests):
    def make_strategy(self) -> Strategy:
        chain, lookup = MTPChain(), PromptLookup()
        return ScheduledStrategy([(chain, 3), (lookup, 2), (chain, 0)])
