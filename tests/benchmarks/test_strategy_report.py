"""Outcomes are summed up as they should be, and a real comparison has the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import attrs
import pytest

import speculate as sp
from benchmarks.pair import Pair
from benchmarks.report import Options
from benchmarks.strategy.costs import measured
from benchmarks.strategy.fixed_choices import OFF, Arm, Best
from benchmarks.strategy.measured import COLD, WARM, Comparison, promising, survival
from benchmarks.strategy.recording import Recording, recordings
from benchmarks.strategy.report import Entry, write
from benchmarks.strategy.score import WORKLOADS, percentile, score
from benchmarks.strategy.simulation import (
    Outcome,
    adaptive,
    bounds,
    fixed,
    simulated,
)
from speculate.protocols import Costs

TOKENS = 40

FREE: Final = Costs(0, {1: 1.0, 9: 1.0}, {"mtp": 0.0, "draft": 0.0})
"""Times where neither rows nor drafts cost anything."""


def shortened(recording: Recording, tokens: int) -> Recording:
    """The first tokens of a request."""
    right = {
        name: [min(count, tokens - 1 - place) for place, count in enumerate(counts[: tokens - 1])]
        for name, counts in recording.right.items()
    }
    return attrs.evolve(recording, output=recording.output[:tokens], right=right)


@pytest.fixture(scope="module")
def short() -> list[Recording]:
    """One request of each workload, its beginning."""
    return [shortened(one, 140) for one in recordings() if one.request == 0]


def outcome(workload: str, time: float, plain: float = 100.0) -> Outcome:
    best = Best(Arm("mtp", 2), 50.0)
    return Outcome("flat", workload, 0, time, time / 2, plain, best, Best(OFF, 20.0))


def test_scores_are_means_by_workload_and_the_worst_over_plain() -> None:
    found = score([outcome(name, 60.0) for name in WORKLOADS] + [outcome("copy", 40.0, 32.0)])
    assert found.workloads == {name: 1.0 if name == "copy" else 1.2 for name in WORKLOADS}
    assert (found.plain, found.p95) == (1.25, 1.2)
    assert found.start == pytest.approx((5 * 1.5 + 1.0) / 6)


def test_percentiles_leave_the_given_part_below() -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], 0.95) == 95.0
    assert percentile([3.0], 0.95) == 3.0


def test_a_fixed_choice_is_never_better_than_the_best_one(short: list[Recording]) -> None:
    limits = bounds(short)
    outcomes = fixed(Arm("lookup", 4), short, limits)
    assert len(outcomes) == 4 * len(short)
    assert min(one.ratio for one in outcomes) >= 1.0
    assert min(one.start / one.best_start.time for one in outcomes) >= 1.0


def test_a_strategy_may_outlive_a_request(short: list[Recording]) -> None:
    limits = bounds(short)
    cold, warm = (simulated(adaptive, memory, short, limits) for memory in ("cold", "shuffled"))
    assert [attrs.asdict(one) for one in cold] == [
        attrs.asdict(one) for one in simulated(adaptive, "cold", short, limits)
    ]
    assert {(one.curve, one.workload) for one in cold} == {(o.curve, o.workload) for o in warm}
    assert sum(one.time for one in cold) != sum(one.time for one in warm)


def test_files_and_table_say_what_missed_its_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [outcome(name, 50.0 if name == "mixed" else 52.0) for name in WORKLOADS]
    write(
        [Entry("mine", outcomes, drawn=True)], Options(True, tmp_path), "try", "Title", {"f": OFF}
    )
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| mine"))
    cells = "1.040* 1.040* 1.040* 1.000 1.040* 1.040 0.520 1.290*"
    assert line.replace("|", "").split()[1:] == cells.split()
    record = json.loads((tmp_path / "try.json").read_text(encoding="utf-8"))
    assert record["strategies"]["mine"]["all"]["mixed"] == 1.0
    assert record["f"] == {"proposer": None, "depth": 0}
    assert (tmp_path / "try.png").read_bytes().startswith(b"\x89PNG")


def test_promising_depths_follow_the_costs(short: list[Recording]) -> None:
    code = next(one for one in short if one.workload == "code")
    free = promising(code, FREE)
    steep = promising(code, Costs(0, {1: 1.0, 9: 8.0}, {"mtp": 0.1, "draft": 0.5}))
    assert free["best mtp"].depth > steep["best mtp"].depth


def test_what_is_hopeless_by_the_recording_is_left_out(short: list[Recording]) -> None:
    copied = next(one for one in short if one.workload == "copy")
    assert list(promising(copied, FREE)) == ["best lookup"]


def test_a_comparison_decodes_with_everyone(short: list[Recording]) -> None:
    pair = Pair(sp.load_demo()[0], sp.load_demo("draft")[0])
    recording = shortened(short[0], TOKENS)
    costs = measured(pair, recording.prompt)
    assert set(costs.forward) == {1, 2, 3, 5, 9}
    assert set(costs.draft) == {"mtp", "draft"}
    comparison = Comparison(pair, FREE)
    found = comparison.run(recording)
    assert list(found) == [COLD, WARM, "off", *promising(recording, FREE)]
    assert "best mtp" in found
    fixed_times = [found[name].time for name in found if name not in (COLD, WARM)]
    for one in found.values():
        assert one.best.time == min(fixed_times)
        assert one.plain == found["off"].time
    shares = survival(comparison.timed)["code"]
    assert 0 < shares["mtp"][0] <= 1
    _, timed = comparison.timed[0]
    assert {len(one.times) for name in timed for one in timed[name]} == {TOKENS}
