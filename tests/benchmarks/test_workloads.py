"""Workloads are long enough, repeatable, and what they are called."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from pathlib import Path

import pytest

import speculate as sp
from benchmarks import traces
from benchmarks.workloads import Request, workloads

RECORDED = Path(traces.__file__).parent / "data" / "traces.jsonl"


@pytest.fixture(scope="module")
def found() -> dict[str, list[Request]]:
    return workloads(sp.load_demo()[1])


def test_each_workload_has_long_requests(found: dict[str, list[Request]]) -> None:
    assert list(found) == ["code", "prose", "copy", "mixed", "adversarial"]
    for requests in found.values():
        assert len(requests) >= 6
        assert len({request.prompt for request in requests}) == len(requests)
        for request in requests:
            assert 256 <= request.length <= sum(piece.length for piece in request.pieces)


def test_they_are_the_same_every_time(found: dict[str, list[Request]]) -> None:
    assert workloads(sp.load_demo()[1]) == found


def test_others_are_others_of_the_same_kinds(found: dict[str, list[Request]]) -> None:
    others = workloads(sp.load_demo()[1], others=True)
    assert list(others) == list(found)
    for name, requests in others.items():
        prompts = {request.prompt for request in requests}
        assert len(prompts) == len(requests)
        assert not prompts & {request.prompt for request in found[name]}
        for request in requests:
            assert 256 <= request.length <= sum(piece.length for piece in request.pieces)


def test_copies_differ_from_their_prompts_here_and_there(found: dict[str, list[Request]]) -> None:
    for request in found["copy"]:
        assert request.forced is not None
        same = SequenceMatcher(None, request.prompt, request.forced, autojunk=False).ratio()
        assert 0.6 < same < 0.98


def test_forced_and_free_text_take_turns_in_mixed_requests(
    found: dict[str, list[Request]],
) -> None:
    for request in found["mixed"]:
        assert request.forced is None
        assert [bool(piece.forced) for piece in request.pieces] == [False, True, True, True, True]


def test_a_forced_text_is_said_and_a_free_one_follows(found: dict[str, list[Request]]) -> None:
    target = sp.load_demo()[0]
    request = found["mixed"][1]
    short = Request(request.prompt[:8], request.pieces[1:2], 60)
    forced = short.pieces[0].forced
    said = traces.speak(target, short)
    assert len(said) == 60
    assert tuple(said[: len(forced)]) == forced
    plain = sp.Decoder(target, sp.Off()).generate([*short.prompt, *forced], 60 - len(forced))
    assert said[len(forced) :] == [token.id for token in plain]


def test_right_counts_leading_drafts() -> None:
    record = traces.Record(sp.MTPChain(), drafts=[[5, 6, 9], [6, 7, 9], [1, 8, 9]])
    assert record.right([4, 5, 6, 7]) == [2, 2, 0]


def test_recorded_traces_fit_their_texts(found: dict[str, list[Request]]) -> None:
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    names = [(line["workload"], line["request"]) for line in lines]
    assert names == [(name, index) for name in found for index in range(len(found[name]))]
    for line in lines:
        request = found[line["workload"]][line["request"]]
        assert tuple(line["prompt"]) == request.prompt
        assert len(line["output"]) == request.length
        for guesses in line["proposers"].values():
            assert len(guesses["right"]) == len(guesses["confidence"]) == request.length - 1
            assert all(0 <= chance <= 1 for row in guesses["confidence"] for chance in row)


def test_recorded_drafts_are_those_of_decoding(found: dict[str, list[Request]]) -> None:
    """A prefix of a recorded line, recorded again."""
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    request, count = found["code"][1], 24
    short = Request(request.prompt, request.pieces, count)
    again = traces.trace(sp.load_demo()[0], sp.load_demo("draft")[0], short)
    line = next(x for x in lines if (x["workload"], x["request"]) == ("code", 1))
    assert line["output"][:count] == again["output"]
    unhurt = count - 1 - traces.DEPTH  # behind it the shorter text cuts the counts
    for name, guesses in again["proposers"].items():
        assert line["proposers"][name]["right"][:unhurt] == guesses["right"][:unhurt]
