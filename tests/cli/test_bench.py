"""`speculate bench`: what it measures, prints and writes."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import mlx.core as mx
import pytest
from pytest import approx

import speculate as sp
from speculate.cli import _console
from speculate.cli import bench as command
from speculate.cli._bench_report import (
    Results,
    best_fixed,
    disturbance,
    draw,
    relative_times,
    results_by_workload,
    round_times,
    same_text,
    show,
    survival,
)
from speculate.cli._bench_runs import (
    REPEATS,
    ROWS,
    BenchRun,
    Estimate,
    run_all,
    settings_for,
    time_forwards,
)
from speculate.cli._console import as_json
from speculate.protocols import Forward, Rollbackable, Round
from tests.support import tiny, tokenizers
from tests.support.command_runs import Said, run

PNG = b"\x89PNG\r\n\x1a\n"


def plain(seconds: float) -> Round:
    return Round(0, None, 0, 0, 0, 1, False, seconds)


def drafted(by: str, depth: int, accepted: int, seconds: float) -> Round:
    return Round(0, by, depth, depth, accepted, accepted + 1, False, seconds)


def written_out() -> list[BenchRun]:
    """Four tokens without drafts in 4 s, with six drafts in 2 s, and with some in 5 s."""
    deep = [drafted("mtp", 6, 2, 1.0), drafted("mtp", 6, 0, 1.0)]
    some = [plain(1.0), drafted("mtp", 1, 1, 3.0), drafted("lookup", 2, 0, 1.0)]
    return [
        BenchRun("code", 0, "off", [1, 2, 3, 4], [plain(0.5), plain(1.0), plain(1.0), plain(1.5)]),
        BenchRun("code", 0, "mtp 6", [1, 2, 3, 4], deep),
        BenchRun("code", 0, "adaptive", [1, 2, 3, 4], some),
    ]


def results_of(runs: Sequence[BenchRun]) -> Results:
    """What the command makes of them."""
    return Results(
        model="mine",
        draft_model=None,
        machine={"device": "none"},
        tokens=4,
        forward=relative_times({1: 1.0, 2: 1.5}, 7),
        survival=survival(runs),
        choices=round_times(runs),
        workloads=results_by_workload(runs),
        same_text=same_text(runs),
        disturbance=disturbance(runs),
    )


def test_speedups_of_a_written_out_example() -> None:
    found = results_by_workload(written_out())["code"]
    assert {way: own.speedup for way, own in found.items()} == {
        "off": 1.0,
        "mtp 6": 2.0,
        "adaptive": 4.0 / 5.0,
    }
    deep = found["mtp 6"]
    assert (deep.tokens, deep.passes, deep.draft_tokens, deep.accepted_tokens) == (4, 2, 12, 2)
    assert best_fixed(found) == "mtp 6"
    assert best_fixed({"off": found["off"], "adaptive": found["mtp 6"]}) == "off"


def test_two_runs_of_a_text_add_up() -> None:
    slower = [plain(2.0), plain(2.0), plain(2.0), plain(2.0)]
    again = BenchRun("code", 0, "off", [1, 2, 3, 4], slower)
    found = results_by_workload([*written_out(), again])["code"]
    assert (found["off"].tokens, found["off"].seconds) == (8, 12.0)
    # Where all ways went as often, each way's sum is compared with plain decoding's.
    assert found["mtp 6"].speedup == 6.0


def at(way: str, seconds: float) -> BenchRun:
    return BenchRun("code", 0, way, [1], [plain(seconds)])


PAIRS = [
    ("off", 4.0, 4.4),  # 10 % apart, and so are these in the median
    ("mtp 1", 2.0, 2.1),
    ("mtp 3", 3.9, 4.2),
    ("mtp 6", 1.5, 6.0),
    ("lookup 1", 8.0, 9.0),
    ("adaptive", 4.4, 4.8),
]


def test_no_speedup_is_given_where_two_runs_of_the_same_differ_by_more() -> None:
    runs = [at(way, seconds) for way, *both in PAIRS for seconds in both]
    found = results_by_workload(runs)["code"]
    assert {way: own.speedup for way, own in found.items()} == {
        "off": 1.0,
        "mtp 1": approx(8.4 / 4.1),
        "mtp 3": None,  # 1.04, and decoding without drafts differs by 10 %
        "mtp 6": None,  # 1.12, and its own two runs by 300 %
        "lookup 1": approx(8.4 / 17.0),
        "adaptive": None,  # 0.91, which is 9.5 % slower
    }
    assert found["mtp 1"].spread == approx(0.1)
    assert found["mtp 6"].spread == approx(3.0)
    assert found["mtp 6"].no_speedup == (
        "repeated runs differ by 300%, and this setting from decoding without drafts by 12%"
    )
    assert found["mtp 1"].no_speedup is None
    assert best_fixed(found) == "mtp 1"


def test_one_run_that_was_disturbed_is_enough() -> None:
    seconds = {"off": ((4.0, 4.0), (4.0, 8.0)), "mtp 1": ((3.3, 3.3), (3.3, 3.3))}
    runs = [
        BenchRun("code", prompt, way, [1], [plain(each)])
        for way, texts in seconds.items()
        for prompt, both in enumerate(texts)
        for each in both
    ]
    found = results_by_workload(runs)["code"]["mtp 1"]
    # The sums say 1.5, and the runs of one of the two texts without drafts 2.
    assert (found.speedup, found.spread) == (None, 1.0)


def test_what_is_not_given_is_not_printed_and_not_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = results_of([at(way, seconds) for way, *both in PAIRS for seconds in both])
    show(results)
    said = capsys.readouterr().out
    rows = {line[:8].strip(): line[8:].split() for line in said.splitlines()}
    assert rows["mtp 1"][0] == "2.05"
    assert rows["mtp 3"][0] == rows["mtp 6"][0] == rows["adaptive"][0] == "?"
    assert (
        "code: best fixed setting mtp 1, 2.05; adaptive ?\n"
        "code: no speedup is given for mtp 3, mtp 6, adaptive: repeated runs differ by up to 300%, "
        "more than these settings gain or lose\n"
    ) in said
    draw(results, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(PNG)
    written = json.loads(as_json(attrs.asdict(results)))["workloads"]["code"]
    assert written["mtp 6"]["speedup"] is None and "300%" in written["mtp 6"]["no_speedup"]


def test_survival_is_of_the_deepest_drafts() -> None:
    assert survival(written_out()) == {"mtp": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]}


def test_times_of_choices_are_medians() -> None:
    found = {(choice.proposer, choice.depth): choice for choice in round_times(written_out())}
    assert list(found) == [(None, 0), ("lookup", 2), ("mtp", 1), ("mtp", 6)]
    assert (found[None, 0].rounds, found[None, 0].seconds) == (5, 1.0)
    assert (found["mtp", 1].rounds, found["mtp", 1].relative) == (1, 3.0)
    assert found["mtp", 6].rounds == 2


def test_texts_are_compared_prompt_by_prompt() -> None:
    runs = written_out()
    other = BenchRun("code", 1, "off", [5], [plain(1.0)])
    assert same_text([*runs, other])
    assert not same_text([*runs, other, BenchRun("code", 1, "mtp 6", [6], [plain(1.0)])])


def test_how_far_two_runs_of_the_same_are_apart() -> None:
    pairs = [("off", 1.0, 1.5), ("mtp 1", 2.0, 2.0), ("mtp 3", 4.0, 1.0)]
    runs = [at(way, seconds) for way, *both in pairs for seconds in both]
    assert disturbance(runs) == approx(0.5)


def test_v_is_relative_to_one_row() -> None:
    found = relative_times({1: 2.0, 2: 3.0}, 7)
    assert (found.context, found.relative) == (7, {1: 1.0, 2: 1.5})


@pytest.mark.parametrize("name", ["hybrid", "windowed"])
def test_every_width_is_timed(name: str) -> None:
    model, tokenizer = sp.load_demo(name)
    calls: list[None] = []
    found = time_forwards(model, tokenizer.encode("def a(b):\n"), lambda: calls.append(None))
    assert list(found) == list(ROWS) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert all(0 < seconds < 60 for seconds in found.values())
    assert len(calls) == 1 + REPEATS


class Watched:
    """A model that notes how long the text is in front of each of its forwards."""

    def __init__(self, model: sp.SpeculativeModel) -> None:
        self._model = model
        self.fed: list[tuple[int, int]] = []

    def make_cache(self) -> list[Rollbackable]:
        return self._model.make_cache()

    def forward(
        self, tokens: mx.array, cache: Sequence[Rollbackable], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        self.fed.append((max(member.length() for member in cache), tokens.shape[1]))
        return self._model.forward(tokens, cache)


def test_every_width_has_the_same_text_before_it() -> None:
    model, _ = sp.load()
    watched = Watched(model)
    time_forwards(cast(sp.SpeculativeModel, watched), [5, 6, 7], lambda: None)
    assert watched.fed == [(0, 3), *[(3, rows) for rows in ROWS] * (1 + REPEATS)]


def test_ways_go_forth_and_back() -> None:
    model, _ = sp.load()
    draft, _ = sp.load_demo("draft")
    ways = settings_for(model, draft)
    fixed = [f"{name} {depth}" for name in ("draft", "mtp", "lookup") for depth in (1, 3, 6)]
    assert list(ways) == ["off", *fixed, "adaptive"]
    some = {way: ways[way] for way in ("off", "mtp 3", "draft 1")}
    prompts = {"code": [[5, 6, 7]], "prose": [[8, 9]]}
    told: list[str] = []

    @contextmanager
    def stage(name: str, steps: int) -> Iterator[Callable[[], None]]:
        told.append(f"{name}, {steps} steps")
        yield lambda: told.append(".")
        expected.append(estimate.left())

    ticks, estimate = iter(range(100)), Estimate(some, 4, 3)
    expected: list[float | None] = []
    runs = run_all(model, some, prompts, 3, (), stage, estimate, lambda: float(next(ticks)))
    assert "".join(told) == (
        "warm-up, 6 steps......code 1 of 1, 6 steps......prose 1 of 1, 6 steps......"
    )
    # By that clock each text takes a second, also the short ones before.
    assert expected == [approx(12.0), approx(6.0), 0.0]
    order = ["off", "mtp 3", "draft 1", "draft 1", "mtp 3", "off"]
    assert [(run.workload, run.setting) for run in runs] == [
        (workload, way) for workload in ("code", "prose") for way in order
    ]
    assert same_text(runs)
    assert all(len(run.ids) == 3 and run.seconds > 0 for run in runs)
    for who, own in (("mtp", "mtp 3"), ("draft", "draft 1"), (None, "off")):
        assert who in {r.proposer for run in runs if run.setting == own for r in run.rounds}


def test_a_strategy_is_made_anew_for_each_text() -> None:
    model, _ = sp.load()
    make = settings_for(model, None)["adaptive"]
    assert make() is not make()


def bench(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> Said:
    return run(capsys, "bench", "--tokens", "4", "--output", str(folder), *options)


@pytest.fixture
def dense(tmp_path: Path) -> str:
    return str(tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE))


def test_all_of_it(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dense: str,
) -> None:
    monkeypatch.setattr(_console, "PROGRESS_INTERVAL", math.inf)
    said = bench(capsys, tmp_path / "deep" / "out", "--model", dense, "--draft", dense)
    assert said.status == 0
    assert re.sub(r"\d+(\.\d)? s", "# s", said.err).splitlines() == [
        "forwards: # s",
        "warm-up: # s, about # s left",
        *(f"{kind} of 2: # s, about # s left" for kind in ("code 1", "code 2", "prose 1")),
        "prose 2 of 2: # s",
    ]
    assert not set("\r\x1b") & {*said.err}
    found: dict[str, Any] = json.loads((tmp_path / "deep" / "out" / "bench.json").read_text())
    assert (found["model"], found["draft_model"], found["tokens"]) == (dense, dense, 4)
    assert found["same_text"] is True
    assert found["machine"]["device"].startswith("cpu: ")
    assert set(found["machine"]) == {"device", "mlx-speculate", "mlx", "mlx-lm", "Python"}
    assert list(found["forward"]["relative"]) == [str(rows) for rows in range(1, 10)]
    assert set(found["workloads"]) == {"code", "prose"}
    fixed = [f"{name} {depth}" for name in ("draft", "lookup") for depth in (1, 3, 6)]
    for outcomes_ in found["workloads"].values():
        assert list(outcomes_) == ["off", *fixed, "adaptive"]
        assert outcomes_["off"]["speedup"] == 1.0
        # Two prompts, four tokens each, twice.
        assert {outcome["tokens"] for outcome in outcomes_.values()} == {16}
    # It drafts for itself.
    assert found["survival"]["draft"] == [1.0, 1.0, 1.0]
    assert (tmp_path / "deep" / "out" / "bench.png").read_bytes().startswith(PNG)
    for words_ in ("v(T)", "adaptive", "best fixed setting", "All settings gave the same texts."):
        assert words_ in said.out
    assert "Measured on a CPU" in said.out
    assert said.out.endswith(f"{tmp_path}/deep/out/bench.png\n")


def test_without_matplotlib_the_numbers_are_written(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    dense: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    said = bench(capsys, tmp_path / "out", "--model", dense)
    assert said.status == 0
    assert said.err.splitlines()[0] == (
        "matplotlib is not installed, so bench.png is not drawn: pip install 'mlx-speculate[plots]'"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench.json"]
    assert said.out.endswith("bench.json\n")


def test_matplotlib_is_imported_by_nothing_else() -> None:
    code = (
        "import sys, speculate.cli.main, speculate.cli._bench_report; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    said = bench(capsys, tmp_path / "file", "--model", "/nowhere")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"speculate: error: results cannot be written to {tmp_path}/file: ")
    assert said.err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tokens", "0"], "must be at least 1"),
        (["--model", "/nowhere"], "there is no such folder"),
        (["--draft-model", "/nowhere"], "there is no such folder"),
    ],
)
def test_bad_input_keeps_earlier_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], reason: str
) -> None:
    (tmp_path / "bench.json").write_text("earlier")
    said = run(capsys, "bench", "--output", str(tmp_path), *options)
    assert said.status == 2
    assert reason in said.err
    assert (tmp_path / "bench.json").read_text() == "earlier"
