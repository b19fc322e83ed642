"""`Adaptive` without this or that: proposers that raise, none at all, options that are wrong."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast, final

import pytest

from speculate import Adaptive
from speculate.errors import OptionError
from speculate.protocols import (
    Costs,
    DraftScore,
    Forecast,
    Plan,
    Round,
    SupportsCosts,
    SupportsFailover,
)
from speculate.strategies.adaptive import PROBE_MIN_TOKENS
from tests.support.simulated import PLAIN, Finder, Guesser, World

COSTS = Costs(100, {1: 0.02, 2: 0.021, 5: 0.03}, {"mtp": 0.002})


@final
class Raising(Guesser):
    """A lookup that raises when it is asked what it foresees, or what it would have been worth."""

    def __init__(self, where: str) -> None:
        super().__init__("lookup", 0.0, 1.0)
        self.where = where
        self.asked = 0

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        self._pass("forecast")
        return Forecast(3, 16)

    def scores(self) -> Sequence[DraftScore]:
        self._pass("scores")
        return [DraftScore(3, 0, 1, 1)]

    def _pass(self, where: str) -> None:
        self.asked += 1
        if where == self.where:
            raise RuntimeError(f"no {where}")


def free() -> tuple[World, Guesser, Adaptive]:
    """A proposer that pays in any case."""
    guesser = Guesser("mtp", 0.0, 1.0)
    world = World(guesser, forward={1: 1.0, 9: 1.0})
    return world, guesser, Adaptive(guesser, costs=world.costs())


def test_one_that_failed_is_left_alone_until_the_next_text_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, guesser, strategy = free()
    assert isinstance(strategy, SupportsFailover)
    world.run(strategy, 50)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        strategy.failed(guesser, error := ValueError("out of memory"))
    (record,) = caplog.records
    assert "'mtp'" in record.getMessage()
    assert "out of memory" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert {round.planned for round in world.run(strategy, 600)} == {0}
    # Costs are asked for after the prompt was taken in, where it may have failed as well.
    strategy.needs_costs("key", 10, None)
    assert strategy.plan(None).proposer is None
    strategy.begin()
    assert strategy.plan(None).proposer is None  # the first round of any text
    assert strategy.plan(None).proposer is guesser


def test_when_one_failed_the_others_draft() -> None:
    chain, small = Guesser("mtp", 0.0, 1.0), Guesser("draft", 0.0, 1.0)
    world = World(chain, small, forward={1: 1.0, 9: 1.0})
    strategy = Adaptive(chain, small, costs=world.costs())
    who = world.run(strategy, 50)[-1].proposer
    assert who is not None
    strategy.failed(world.proposers[who], ValueError("broken"))
    rounds = world.run(strategy, 400)
    assert who not in {round.proposer for round in rounds}
    assert {round.proposer for round in rounds[-10:]} == {"mtp", "draft"} - {who}


@pytest.mark.parametrize("where", ["forecast", "scores"])
def test_a_lookup_that_cannot_tell_is_left_alone_after_one_warning(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain, lookup = Guesser("mtp", 0.1, 0.9), Raising(where)
    world = World(chain, lookup)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        rounds = world.run(Adaptive(lookup, chain, costs=world.costs()), 200)
    assert len(caplog.records) == 1
    assert f"no {where}" in caplog.records[0].getMessage()
    assert {round.proposer for round in rounds[1:]} <= {"mtp", None}
    assert sum(round.proposer == "mtp" for round in rounds) > 40
    # It is not asked again.
    assert lookup.asked <= 2


@final
class Reporting(Guesser):
    """A lookup that tells what it is given to tell."""

    def __init__(
        self,
        forecast: object = Forecast(3, 16),
        scores: object = (),
        behind: object = 0,
    ) -> None:
        super().__init__("lookup", 0.0, 1.0)
        self._reported = forecast, scores, behind

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        return cast(Forecast, self._reported[0])

    def scores(self) -> Sequence[DraftScore]:
        return cast("Sequence[DraftScore]", self._reported[1])

    def backlog(self) -> int:
        return cast(int, self._reported[2])


NONSENSE: dict[str, tuple[Reporting, str]] = {
    "no forecast": (Reporting(None), r"forecast\(\) .* NoneType"),
    "a pair": (Reporting((3, 16)), r"forecast\(\) .* tuple"),
    "kind -1": (Reporting(Forecast(-1, 4)), r"Forecast\.bucket -1"),
    "kind 2.5": (Reporting(Forecast(cast(int, 2.5), 4)), r"Forecast\.bucket 2\.5"),
    "kind by place": (Reporting(Forecast(10**400, 4)), r"Forecast\.bucket 1000"),
    "length -1": (Reporting(Forecast(2, -1)), r"Forecast\.length -1"),
    "length nan": (Reporting(Forecast(2, cast(int, math.nan))), r"Forecast\.length nan"),
    "no scores": (Reporting(scores=None), r"scores\(\) .* NoneType"),
    "numbers": (Reporting(scores=[(3, 0, 1, 1)]), r"scores\(\) .* tuple"),
    "scores's kind": (Reporting(scores=[DraftScore(-1, 0, 1, 1)]), r"DraftScore\.bucket -1"),
    "position -1": (Reporting(scores=[DraftScore(3, -1, 1, 1)]), r"DraftScore\.position -1"),
    "far position": (Reporting(scores=[DraftScore(3, 10**9, 1, 1)]), r"DraftScore\.position 10"),
    "compared -1": (Reporting(scores=[DraftScore(3, 0, -1, 0)]), r"DraftScore\.compared -1"),
    "right -1": (Reporting(scores=[DraftScore(3, 0, 1, -1)]), r"DraftScore\.right -1"),
    "too much right": (Reporting(scores=[DraftScore(3, 0, 1, 2)]), r"DraftScore\.right 2"),
    "inf right": (
        Reporting(scores=[DraftScore(3, 0, 1, cast(int, math.inf))]),
        r"DraftScore\.right inf",
    ),
    "behind -1": (Reporting(behind=-1), r"backlog\(\) -1"),
    "behind None": (Reporting(behind=None), r"backlog\(\) None"),
    "behind 0.5": (Reporting(behind=0.5), r"backlog\(\) 0\.5"),
    "behind by far": (Reporting(behind=10**400), "too large"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_one_that_reports_nonsense_is_left_alone_and_the_warning_says_what_it_reported(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain, (lookup, message) = Guesser("mtp", 0.1, 0.9), NONSENSE[name]
    world = World(chain, lookup)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        rounds = world.run(Adaptive(lookup, chain, costs=world.costs()), 100)
    (record,) = caplog.records
    assert re.search(f"'lookup'.*{message}", record.getMessage())
    assert {round.proposer for round in rounds[1:]} <= {"mtp", None}
    assert sum(round.proposer == "mtp" for round in rounds) > 20


@pytest.mark.parametrize(
    "lookup",
    [
        Reporting(Forecast(0, 0)),
        Reporting(Forecast(4, 10**9)),
        Reporting(scores=(DraftScore(3, 15, 0, 0), DraftScore(3, 0, 10**6, 10**6))),
        Reporting(behind=10**9),
    ],
    ids=["nothing", "endless", "much", "far behind"],
)
def test_one_that_reports_what_may_be_true_is_not_left_alone(
    lookup: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(Guesser("mtp", 0.1, 0.9), lookup)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        world.run(Adaptive(*world.proposers.values(), costs=world.costs()), 100)
    assert not caplog.records


@pytest.mark.parametrize("clock", ["wall", "fixed"])
def test_without_proposers_it_decodes_plainly(clock: str) -> None:
    strategy = Adaptive(clock="fixed") if clock == "fixed" else Adaptive()
    assert list(strategy.proposers) == []
    assert not strategy.needs_costs("key", 100, None)
    world = World()
    rounds = world.run(strategy, 600)
    assert {round.planned for round in rounds} == {0}
    assert len(rounds) == 600


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_a_clock_that_stops_or_runs_wild_breaks_nothing(seconds: float) -> None:
    chain, lookup = Guesser("mtp", 0.1, 0.9), Finder(0.5)
    for strategy in (Adaptive(chain, lookup, measure=False), Adaptive(chain, lookup, costs=COSTS)):
        for index in range(700):
            plan = strategy.plan(None)
            who = None if plan.proposer is None else plan.proposer.name
            took = seconds if index % 3 else PLAIN
            strategy.observe(
                Round(
                    index,
                    who,
                    plan.depth,
                    plan.depth,
                    0,
                    1,
                    truncated=False,
                    seconds=took,
                    planned_proposer=who,
                )
            )


# Options.


def test_a_clock_is_one_of_two() -> None:
    with pytest.raises(OptionError, match="'wall' or 'fixed', got 'sun'"):
        Adaptive(clock="sun")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forward", "draft"),
    [
        ({}, {}),
        ({1: 0.02}, {}),
        ({2: 0.02, 3: 0.03}, {}),
        ({0: 0.02, 1: 0.02}, {}),
        ({1: 0.0, 2: 0.02}, {}),
        ({1: 0.02, 2: -0.02}, {}),
        ({1: 0.02, 2: math.nan}, {}),
        ({1: 0.02, 2: math.inf}, {}),
        ({1: 0.02, 2: 0.03}, {"mtp": -0.1}),
    ],
)
def test_costs_that_are_none_are_refused(
    forward: dict[int, float], draft: dict[str, float]
) -> None:
    with pytest.raises(OptionError, match="costs"):
        Adaptive(costs=Costs(0, forward, draft))


def test_a_table_in_which_more_rows_take_less_is_no_reason_to_draft_more() -> None:
    # At 13 rows its times would be negative.
    guesser = Guesser("mtp", 0.1, 0.9)
    world = World(guesser)
    costs = Costs(0, {1: PLAIN, 2: PLAIN * 1.2, 3: PLAIN * 0.9}, {"mtp": 0.0})
    rounds = world.run(Adaptive(guesser, costs=costs), 300)
    assert world.time / PLAIN < sum(round.emitted for round in rounds)


# When costs are measured.


def test_costs_are_missing_once_for_each_length_of_context(tmp_path: Path) -> None:
    strategy = Adaptive(Guesser("mtp", 0.1, 0.9), cache_folder=tmp_path)
    assert isinstance(strategy, SupportsCosts)
    assert strategy.needs_costs("key", 100, None)
    strategy.set_costs(COSTS)
    assert not strategy.needs_costs("key", 100, None)
    assert not strategy.needs_costs("key", 256, 300)
    assert strategy.needs_costs("key", 257, 300)
    assert strategy.needs_costs("another", 100, 300)
    again = Adaptive(Guesser("mtp", 0.1, 0.9), cache_folder=tmp_path)
    assert not again.needs_costs("key", 3, None)
    assert again.plan(None) == Plan()


def test_a_model_without_a_name_is_measured_in_every_process(tmp_path: Path) -> None:
    strategy = Adaptive(Guesser("mtp", 0.1, 0.9), cache_folder=tmp_path)
    assert strategy.needs_costs(None, 100, None)
    strategy.set_costs(COSTS)
    assert not strategy.needs_costs(None, 100, None)
    assert list(tmp_path.iterdir()) == []


def test_short_texts_and_those_who_do_not_want_it_measure_nothing(tmp_path: Path) -> None:
    one = Guesser("mtp", 0.1, 0.9)
    short = Adaptive(one, cache_folder=tmp_path)
    assert not short.needs_costs("key", 100, PROBE_MIN_TOKENS - 1)
    assert short.needs_costs("key", 100, PROBE_MIN_TOKENS)
    others = [
        Adaptive(one, cache_folder=tmp_path, measure=False),
        Adaptive(one, cache_folder=tmp_path, costs=COSTS),
        Adaptive(one, cache_folder=tmp_path, clock="fixed"),
    ]
    for strategy in others:
        assert not strategy.needs_costs("key", 100, None)


def test_what_was_measured_is_used_at_once(tmp_path: Path) -> None:
    expensive = Costs(100, {1: 0.02, 2: 0.05, 9: 0.2}, {"mtp": 0.02})
    cheap = Costs(100, {1: 0.02, 2: 0.02, 9: 0.02}, {"mtp": 0.0})
    depths = []
    for costs in (expensive, cheap):
        strategy = Adaptive(Guesser("mtp", 0.1, 0.9), cache_folder=tmp_path)
        assert strategy.needs_costs("key" + str(costs), 100, None)
        strategy.set_costs(costs)
        assert strategy.plain_seconds == 0.02
        depths.append(strategy.plan(None).depth)
    assert depths[0] == 0
    assert depths[1] >= 2
    assert cast(float, strategy.plan(None).predicted_speedup) > 1.5
