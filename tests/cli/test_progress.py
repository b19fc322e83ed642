"""How far something is, as it is shown."""

from __future__ import annotations

import re

import pytest

from speculate.cli._bench_runs import Estimate
from speculate.cli._console import format_duration, progress_bars


class Clock:
    """Tells the time that a test wants."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_a_line_for_each_stage_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as shown:
        with shown.stage("first", 2) as done:
            done()
            done()
            assert capsys.readouterr().err == ""
        assert re.fullmatch(r"first: \d+\.\d s\n", capsys.readouterr().err)
        with pytest.raises(KeyboardInterrupt), shown.stage("second", 2) as done:
            raise KeyboardInterrupt
    assert capsys.readouterr() == ("", "")


def test_elsewhere_a_line_now_and_then_in_a_stage_that_takes_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, left = Clock(), [300.0]
    with progress_bars(lambda: left[0], clock) as shown, shown.stage("first", 20) as done:
        for _ in range(20):
            clock.now += 4.0
            left[0] -= 15.0
            done()
    assert capsys.readouterr() == (
        "",
        "first: 15%, about 4 min left\n"
        "first: 30%, about 4 min left\n"
        "first: 45%, about 3 min left\n"
        "first: 60%, about 2 min left\n"
        "first: 75%, about 75 s left\n"
        "first: 90%, about 30 s left\n"
        "first: 80.0 s\n",
    )


def test_elsewhere_a_line_says_what_is_done_now(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with progress_bars(clock=clock) as shown:
        task = shown.add("loading")
        clock.now += 25.0
        shown.rename(task, "first of two", 2)
        clock.now += 1.0
        shown.advance(task)
        clock.now += 9.0
        shown.rename(task, "second of two")
        shown.advance(task)
        shown.rename(task, "done")
    assert capsys.readouterr() == ("", "first of two: 0%\nsecond of two: 50%\n")


def test_in_a_terminal_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for a terminal, says rich
    monkeypatch.setenv("COLUMNS", "80")
    clock = Clock()
    with progress_bars(lambda: 42.0, clock) as shown, shown.stage("first", 4) as done:
        for _ in range(3):
            clock.now += 60.0
            done()
    written = capsys.readouterr()
    assert written.out == ""
    assert "first" in written.err
    assert "75%" in written.err
    assert "about 42 s left" in written.err
    assert "first:" not in written.err


def test_a_duration_has_the_unit_that_suits_it() -> None:
    seconds = (0.4, 119.0, 120.0, 5000.0, 7200.0, 90_000.0)
    assert [format_duration(each) for each in seconds] == [
        "0 s", "119 s", "2 min", "83 min", "2 h", "25 h",
    ]  # fmt: skip


def test_an_estimate_of_a_written_out_example() -> None:
    estimate = Estimate(["off", "mtp 1"], 4, 100)
    estimate.warm_up("off", 10, 3.0, 1.0)
    assert estimate.left() is None
    # 2 s for its prompt, and 0.1 s a token; 1 s and 0.05 s, when nothing disturbs it.
    for seconds, rounds in ((6.0, 3.0), (1.5, 0.5), (3.0, 2.0)):
        estimate.warm_up("mtp 1", 10, seconds, rounds)
    assert estimate.left() == pytest.approx(4 * (2 + 10) + 4 * (1 + 5))
    estimate.done("off", 10.0)
    assert estimate.left() == pytest.approx(3 * 10 + 4 * 6)
    estimate.done("mtp 1", 7.0)
    estimate.done("mtp 1", 9.0)
    assert estimate.left() == pytest.approx(3 * 10 + 2 * 8)
    for _ in range(3):
        estimate.done("off", 10.0)
    estimate.done("mtp 1", 8.0)
    estimate.done("mtp 1", 8.0)
    assert estimate.left() == 0.0


@pytest.mark.parametrize(("pilots", "ends"), [(0.6, 1.0), (1.6, 1.0), (1.0, 0.6)])
def test_an_estimate_is_right_within_a_factor_of_two(pilots: float, ends: float) -> None:
    # Ways of different speeds, of which some drafts were lucky in the short text and others not;
    # and texts that may end early.
    tokens, texts, prompt = 128, 8, 0.3
    rates = {f"way {n}": 0.01 * (1 + n % 5) for n in range(11)}
    estimate = Estimate(rates, texts, tokens)
    for n, (way, rate) in enumerate(rates.items()):
        taken = 16 * rate * (pilots if n % 2 else 1.0)
        estimate.warm_up(way, 16, prompt + taken, taken)
    each = {way: prompt + ends * tokens * rate for way, rate in rates.items()}
    remaining = texts * sum(each.values())
    for _ in range(texts):
        for way, seconds in each.items():
            left = estimate.left()
            assert left is not None and remaining / 2 < left < remaining * 2
            estimate.done(way, seconds)
            remaining -= seconds
