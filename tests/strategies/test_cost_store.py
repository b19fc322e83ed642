"""Measured costs on disk: found again, and never in the way."""

from __future__ import annotations

import json
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from speculate.protocols import Costs
from speculate.strategies.round_times import CostStore, context_bucket

COSTS: Final = Costs(700, {1: 0.021, 2: 0.0234567890123, 9: 0.05}, {"mtp": 0.002, "draft": 0.0})
KEY: Final = "0123abcd\nmtp 99\ncpu AMD\nmlx 0.32.4"
DIGITS: Final = "9" * 400


def only_file(folder: Path) -> Path:
    (file,) = (folder / "costs").iterdir()
    return file


def test_what_was_saved_is_found_again_to_the_last_bit(tmp_path: Path) -> None:
    CostStore(tmp_path).save(KEY, COSTS)
    assert CostStore(tmp_path).load(KEY, 700) == COSTS
    assert json.loads(only_file(tmp_path).read_text())["key"] == KEY


@pytest.mark.parametrize(
    ("context", "expected"),
    [(-5, 256), (0, 256), (1, 256), (256, 256), (257, 512), (1024, 1024), (1025, 2048)],
)
def test_contexts_share_costs_up_to_a_power_of_two(context: int, expected: int) -> None:
    assert context_bucket(context) == expected


def test_each_model_and_length_has_costs_of_its_own(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    found = {}
    for number, (key, context) in enumerate([("a", 100), ("a", 1000), ("b", 100), ("", 100)], 1):
        found[key, context] = Costs(context, {1: float(number), 2: 2.0 * number}, {})
        store.save(key, found[key, context])
    for (key, context), costs in found.items():
        assert store.load(key, context) == costs
    assert store.load("a", 5000) is None
    assert store.load("c", 100) is None


def test_what_is_measured_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    newer = Costs(600, {1: 0.01, 2: 0.02}, {})
    store.save(KEY, newer)
    assert store.load(KEY, 700) == newer
    assert only_file(tmp_path).suffix == ".json"


def entry(**over: object) -> str:
    fields = {"key": KEY, "context": 700, "forward": {"1": 0.02, "2": 0.03}, "draft": {}}
    return json.dumps({**fields, **over})


HOSTILE: Final = {
    "nothing": "",
    "no json": "{",
    "not utf-8": b"\xff\xfe\x00",
    "null bytes": b"\x00" * 64,
    "a list": "[]",
    "a list of pairs": '[["forward", {"1": 1, "2": 2}], ["draft", {}], ["context", 1]]',
    "null": "null",
    "a number": "3",
    "a string": '"forward"',
    "an empty object": "{}",
    "very deep": "[" * 100_000,
    "deep and closed": '{"forward":' * 5000 + "1" + "}" * 5000,
    "no draft": json.dumps({"context": 1, "forward": {"1": 1.0, "2": 2.0}}),
    "no context": json.dumps({"forward": {"1": 1.0, "2": 2.0}, "draft": {}}),
    "forward is a list": entry(forward=[1.0, 2.0]),
    "forward is null": entry(forward=None),
    "forward is text": entry(forward="12"),
    "no rows": entry(forward={}),
    "one row": entry(forward={"1": 0.02}),
    "not of one row": entry(forward={"2": 0.02, "3": 0.02}),
    "no number of rows": entry(forward={"1": 0.02, "two": 0.02}),
    "no rows at all": entry(forward={"0": 0.02, "1": 0.02}),
    "negative rows": entry(forward={"-1": 0.02, "1": 0.02}),
    "half a row": entry(forward={"1": 0.02, "1.5": 0.02}),
    "a time is text": entry(forward={"1": "fast", "2": 0.02}),
    "a time is null": entry(forward={"1": None, "2": 0.02}),
    "a time is a list": entry(forward={"1": [0.02], "2": 0.02}),
    "no time": entry(forward={"1": 0.0, "2": 0.02}),
    "negative time": entry(forward={"1": 0.02, "2": -0.02}),
    "NaN": entry(forward={"1": math.nan, "2": 0.02}),
    "infinite": entry(forward={"1": 0.02, "2": math.inf}),
    "too large for a float": '{"context":1,"forward":{"1":0.1,"2":' + DIGITS + '},"draft":{}}',
    "too long for an int": '{"context":' + DIGITS * 20 + ',"forward":{"1":1,"2":2},"draft":{}}',
    "days": entry(forward={"1": 0.02, "2": 1e6}),
    "infinite context": entry(context=math.inf),
    "context is text": entry(context="long"),
    "context is null": entry(context=None),
    "draft is a list": entry(draft=[1]),
    "negative draft": entry(draft={"mtp": -1.0}),
    "NaN draft": entry(draft={"mtp": math.nan}),
    "draft is an object": entry(draft={"mtp": {"seconds": 1}}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_says_nonsense_is_measured_anew(
    content: str | bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    file = only_file(tmp_path)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with caplog.at_level(logging.WARNING, logger="speculate"):
        assert store.load(KEY, 700) is None
    assert str(file) in caplog.text
    store.save(KEY, COSTS)
    assert store.load(KEY, 700) == COSTS


def test_a_file_with_more_in_it_than_is_known_is_read(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    only_file(tmp_path).write_text(entry(more={"later": [1, 2]}))
    assert store.load(KEY, 700) == Costs(700, {1: 0.02, 2: 0.03}, {})


@pytest.mark.parametrize("place", ["folder", "costs", "file"])
def test_a_folder_that_cannot_be_written_to_is_left_alone(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Not by permissions: the tests may run as root.
    folder = tmp_path / "cache"
    store = CostStore(folder)
    if place == "folder":
        folder.write_text("somebody's file")
    elif place == "costs":
        folder.mkdir()
        (folder / "costs").write_text("somebody's file")
    else:
        store.save(KEY, COSTS)
        file = only_file(folder)
        file.unlink()
        file.mkdir()
    with caplog.at_level(logging.INFO, logger="speculate"):
        store.save(KEY, COSTS)
        assert store.load(KEY, 700) is None
    assert "not stored" in caplog.text
    left = [path.name for path in tmp_path.rglob("*") if path.suffix == ".tmp"]
    assert left == []


def test_many_writers_at_once_lose_nothing_and_leave_no_files(tmp_path: Path) -> None:
    places = [(f"model {model}", 200 << size) for model in range(3) for size in range(4)]
    costs = {place: Costs(place[1], {1: i + 1.0, 2: i + 2.0}, {}) for i, place in enumerate(places)}
    store = CostStore(tmp_path)

    def write(turn: int) -> None:
        for place in places[turn % 12 :] + places[: turn % 12]:
            store.save(place[0], costs[place])
            assert store.load(*place) == costs[place]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    for place in places:
        assert store.load(*place) == costs[place]
    assert {path.suffix for path in (tmp_path / "costs").iterdir()} == {".json"}


def test_by_default_the_users_cache_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    CostStore().save(KEY, COSTS)
    assert CostStore().load(KEY, 700) == COSTS
    assert len(list(tmp_path.rglob("speculate/costs/*.json"))) == 1
