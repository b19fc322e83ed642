"""`--events`: every round, as a line of JSON."""

from __future__ import annotations

import io
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

import speculate as sp
from speculate.cli._stats_view import EventLog
from speculate.loading import demo_prompt
from speculate.protocols import Round
from tests.support import tiny, tokenizers
from tests.support.command_runs import run

OPTIONS = ("generate", "--proposer", "mtp", "--depth", "2", "--prompt", demo_prompt())


def read(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_is_a_round_and_all_up_to_it() -> None:
    file, stats = io.BytesIO(), sp.Stats()
    log = EventLog(file, "here")
    rounds = [
        Round(0, "mtp", 3, 3, 2, 3, False, 0.5, 7, 1.5, 0.25, "mtp"),
        Round(1, None, 0, 0, 0, 1, True, 0.25, 10),
    ]
    for round in rounds:
        stats.count(round)
        log(round, stats)
    first, second = read(file.getvalue().decode())
    assert first == {
        "index": 0,
        "proposer": "mtp",
        "planned": 3,
        "drafted": 3,
        "accepted": 2,
        "emitted": 3,
        "truncated": False,
        "seconds": 0.5,
        "context": 7,
        "predicted_speedup": 1.5,
        "baseline_seconds": 0.25,
        "planned_proposer": "mtp",
        "overlapped_seconds": 0.0,
        "asked": "mtp",
        "cut": False,
        "ahead": 0.0,
        "predicted": 1.5,
        "plain_seconds": 0.25,
        "totals": {
            "seed": None,
            "rounds": 1,
            "tokens": 3,
            "seconds": 0.5,
            "drafts": 1,
            "draft_tokens": 3,
            "accepted_tokens": 2,
            "mean_acceptance_length": 3.0,
            "acceptance_rate": 2 / 3,
            "predicted_speedup": 1.5,
            "actual_speedup": 3 * 0.25 / 0.5,
        },
    }
    assert (second["proposer"], second["predicted_speedup"]) == (None, None)
    assert (second["totals"]["tokens"], second["totals"]["seconds"]) == (4, 0.75)


OLD_KEYS = {
    "asked": "planned_proposer",
    "cut": "truncated",
    "ahead": "overlapped_seconds",
    "predicted": "predicted_speedup",
    "plain_seconds": "baseline_seconds",
}
"""Keys of earlier versions, which parsers may read, and those that replace them."""


def test_earlier_keys_have_the_values_of_those_that_replace_them() -> None:
    file, stats = io.BytesIO(), sp.Stats()
    log = EventLog(file, "here")
    for round in (
        Round(0, None, 3, 0, 0, 1, True, 0.5, 7, 1.5, 0.25, "lookup", 0.125),
        Round(1, "mtp", 3, 3, 2, 3, False, 0.5, 8, None, None, "mtp"),
    ):
        stats.count(round)
        log(round, stats)
    for line in read(file.getvalue().decode()):
        assert {old: line[old] for old in OLD_KEYS} == {
            old: line[new] for old, new in OLD_KEYS.items()
        }
        assert "confidence" not in line


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_null(number: float) -> None:
    file, stats = io.BytesIO(), sp.Stats()
    round = Round(
        0, "mtp", 3, 3, 2, 3, False, 0.5, 7, predicted_speedup=number, baseline_seconds=number
    )
    stats.count(round)
    EventLog(file, "here")(round, stats)
    (line,) = read(file.getvalue().decode())
    for key in ("predicted_speedup", "predicted", "baseline_seconds", "plain_seconds"):
        assert line[key] is None
    assert line["totals"]["predicted_speedup"] is None


def test_a_file_goes_on_where_it_ended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        said = run(capsys, *OPTIONS, "-m", "12", "--events", str(path))
        assert (said.status, said.notes) == (0, "")
    lines = read(path.read_text())
    once = len(lines) // 2
    assert [line["index"] for line in lines] == [*range(once), *range(once)]
    counters = said.counters()
    last = lines[-1]
    assert set(last) == {field.name for field in attrs.fields(Round)} | OLD_KEYS.keys() | {"totals"}
    assert last["totals"]["tokens"] == counters["tokens"] == 12
    assert last["totals"]["rounds"] == counters["passes"] == once
    assert last["totals"]["accepted_tokens"] == counters["accepted"]
    assert sum(line["emitted"] for line in lines[:once]) == 12
    assert [line["truncated"] for line in lines[:once]] == [False] * (once - 1) + [True]
    assert all(line["seconds"] > 0 for line in lines)


def test_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("generate", "-m", "6", "--temp", "0.8", "--seed", "5")
    said = run(capsys, *options, "--events", "-")  # and not a word besides
    assert said.status == 0
    assert sum(line["emitted"] for line in read(said.err)) == 6
    assert read(said.err)[-1]["totals"]["seed"] == 5
    assert said.out == run(capsys, *options).out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
def test_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, *OPTIONS, "-m", "6", "--events", "/dev/full")
    assert said.status == 2
    assert said.err == (
        "speculate: error: events cannot be written to /dev/full: No space left on device\n"
    )


def test_nothing_is_written_where_nothing_is_generated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("before\n")
    assert run(capsys, "generate", "--model", "/nowhere", "--events", str(path)).status == 2
    assert path.read_text() == "before\n"


def test_a_killed_run_leaves_whole_lines(tmp_path: Path) -> None:
    folder = tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE)
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-m", "speculate.cli", "generate", "--model", str(folder)]
    # A text of 243 tokens, of which 20,000 bytes hold about 40.
    options = ["-p", "c", "-m", "-1", "--events", str(path)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        for _ in range(6000):
            if path.exists() and path.stat().st_size > 20_000:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    lines = read(path.read_text())
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 20
