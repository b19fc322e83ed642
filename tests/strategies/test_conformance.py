"""Every strategy, against the contracts of the conformance kit."""

from __future__ import annotations

from speculate import Adaptive, DraftModel, Fixed, MTPChain, Off, PromptLookup
from speculate.protocols import Strategy
from speculate.testing import ScheduledStrategy, StrategyTests, ToyModel


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
