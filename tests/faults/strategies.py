"""Faults in strategies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import mlx.core as mx

from speculate import PromptLookup
from speculate.protocols import Plan, Proposer, Round, Strategy
from speculate.testing import StrategyTests
from tests.faults.planting import fault


class ToyTests(StrategyTests):
    """Tests `part`."""

    part: ClassVar[Callable[[], Strategy]]

    def make_strategy(self) -> Strategy:
        return type(self).part()


class Toy:
    """Drafts two tokens by lookup in every round."""

    suite = ToyTests

    def __init__(self) -> None:
        self.lookup = PromptLookup()

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self.lookup,)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 2)

    def observe(self, round: Round, /) -> None:
        """Learn nothing."""


@fault(
    "A proposer is planned that is not among the strategy's.",
    caught_by="test_plans_can_be_carried_out",
)
class PlansAnUnknownProposer(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.other = PromptLookup(name="other")

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.other, 2)


@fault(
    "Acceptance is averaged in an array.",
    caught_by="test_it_uses_neither_arrays_nor_random_numbers",
)
class AveragesInAnArray(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.average = mx.zeros((1024,))

    def observe(self, round: Round, /) -> None:
        self.average = 0.9 * self.average + round.accepted
        mx.eval(self.average)


@fault(
    "A plan has a depth and no proposer.",
    caught_by="test_plans_can_be_carried_out",
)
class PlansADepthWithoutAProposer(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(None, 2)


@fault(
    "The depth depends on the clock of the machine.",
    caught_by="test_plans_depend_on_observations_alone",
)
class PlansByTheTimeOfDay(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 1 + time.perf_counter_ns() // 64 % 2)


@fault(
    "The depth grows with every accepted draft, beyond what caches record.",
    caught_by="test_plans_can_be_carried_out",
)
class DepthGrowsWithoutLimit(Toy):
    depth = 1

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, self.depth)

    def observe(self, round: Round, /) -> None:
        self.depth = self.depth + 1 if round.accepted == round.drafted else 1


@fault(
    "`proposers` returns new proposers every time, which see no commits.",
    caught_by="test_proposers_have_distinct_and_stable_names",
)
class ProposersAreMadeAnew(Toy):
    @property
    def proposers(self) -> Sequence[Proposer]:
        return (PromptLookup(),)


@fault(
    "The depth drops below 0 after rejections.",
    caught_by="test_plans_can_be_carried_out",
)
class DepthDropsBelowZero(Toy):
    depth = 3

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, self.depth)

    def observe(self, round: Round, /) -> None:
        self.depth += round.accepted - 1


@fault(
    "The class keeps what one strategy learned, and other strategies use it.",
    caught_by="test_plans_depend_on_observations_alone",
)
class StrategiesShareWhatTheyLearn(Toy):
    learned: ClassVar[list[int]] = []

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, 1 + len(self.learned) % 3)

    def observe(self, round: Round, /) -> None:
        if not round.accepted:
            self.learned.append(round.index)


@fault(
    "The depth is drawn from the global random state.",
    caught_by="test_it_uses_neither_arrays_nor_random_numbers",
)
class DepthIsRandom(Toy):
    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self.lookup, random.choice((1, 2, 3)))


@fault(
    "`plan` fails if the last round was not observed yet.",
    caught_by="test_plan_may_precede_the_last_observe",
)
class PlanWaitsForObserve(Toy):
    planned = observed = 0

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        assert self.planned == self.observed, "the last round was not observed"
        self.planned += 1
        return super().plan(remaining)

    def observe(self, round: Round, /) -> None:
        self.observed += 1
