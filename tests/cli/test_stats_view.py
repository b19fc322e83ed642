"""`--stats`: a live view in a terminal, and a table elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

import speculate as sp
from speculate.cli._stats_view import LiveView
from speculate.loading import demo_prompt
from speculate.protocols import Round
from tests.support.command_runs import run

STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def rounds() -> list[Round]:
    return [
        Round(0, "mtp", 2, 2, 2, 3, False, 0.5, 0, 2.0, 0.25),
        Round(1, "mtp", 2, 2, 1, 2, False, 0.5, 3, 1.0, 0.25),
        Round(2, "lookup", 4, 4, 0, 1, False, 0.5, 5, 1.0, 0.25),
        Round(3, None, 0, 0, 0, 1, False, 0.5, 6, 1.0, 0.25),
    ]


def shown(upto: int, *text: str, every: float = 0.0) -> tuple[LiveView, io.StringIO]:
    """A view that has heard of some rounds and of a text, and what it drew."""
    file = io.StringIO()
    view = LiveView(Console(file=file, force_terminal=True, width=80, highlight=False), every)
    stats = sp.Stats()
    for round in rounds()[:upto]:
        stats.count(round)
        view.add_round(round, stats)
    for piece in text:
        view.write(piece)
    return view, file


def picture(file: io.StringIO) -> list[str]:
    """What stands at the bottom of the terminal: the last picture, without styles."""
    last = file.getvalue().rpartition("\x1b[2K")[2]
    return [line.rstrip() for line in STYLES.sub("", last).splitlines()]


def terminal(file: io.StringIO) -> list[str]:
    """The lines of a terminal on which all of it was drawn, by the controls that are used."""
    lines, row = [""], 0
    for control, text in re.findall(
        r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", file.getvalue()
    ):
        if control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif control == "\x1b[1A":
            row -= 1
        elif control == "\x1b[2K":
            lines[row] = ""
        lines[row] += text
    return [line.rstrip() for line in lines]


def test_the_last_picture_has_all_of_it() -> None:
    view, file = shown(4, "some\ntext")
    view.end()
    assert terminal(file) == [
        "some",
        "text",
        "",
        "proposer  rounds  time  drafted  accepted  rate  accepted per position, %",
        "mtp            2   50%        4         3   75%  100 50",
        "lookup         1   25%        4         0    0%  0 0 0 0",
        "no draft       1   25%",
        "",
        "tokens     7, 3.5 per second, 1.75 per round",
        "speedup    0.88, 1.25 predicted",
        "depths     ▄▄█.",
        "drafts by  mml.",
        "",
        "",
    ]


def test_meanwhile_it_says_who_drafts_and_shows_the_unfinished_line() -> None:
    view, file = shown(3, "first\nsec", "ond\nthi")
    assert terminal(file)[:5] == ["first", "second", "thi", "", picture(file)[2]]
    assert "last round  lookup, 4 drafted, 0 accepted" in terminal(file)
    view.end()
    assert terminal(file)[:4] == ["first", "second", "thi", ""]
    assert not any("last round" in line for line in terminal(file))


def test_the_whole_text_is_there_once() -> None:
    text = "def area(x):\n    return x\n\n[bold]no markup[/bold] " + "long " * 60 + "\nend\n"
    view, file = shown(1, *(text[i : i + 7] for i in range(0, len(text), 7)))
    view.end()
    found = terminal(file)
    assert found[: found.index("end") + 1] == [line.rstrip() for line in text.splitlines()]


def test_pictures_are_not_drawn_more_often_than_asked_for() -> None:
    view, file = shown(3, *"many pieces\nof a text", every=60.0)
    assert "many" not in file.getvalue()
    view.end()
    assert terminal(file)[:2] == ["many pieces", "of a text"]


def test_before_the_first_round() -> None:
    view, file = shown(0)
    view.end()
    assert "none yet" in file.getvalue()


def test_elsewhere_a_table_stands_below_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ("--prompt", demo_prompt())
    options = ("generate", *prompt, "--proposer", "mtp", "--depth", "2", "-m", "24")
    plain = run(capsys, *options)
    said = run(capsys, *options, "--stats")
    assert (said.status, said.out) == (0, plain.out)
    assert "\x1b" not in said.err
    table = said.err.splitlines()
    assert table[1].startswith("proposer  ")
    name, drafts, _, drafted, accepted, rate, *per_position = table[2].split()
    counters = said.counters()
    assert (name, int(drafted), int(accepted)) == (
        "mtp",
        counters["drafted"],
        counters["accepted"],
    )
    assert rate == f"{int(accepted) / int(drafted):.0%}"
    assert 1 + int(accepted) / int(drafts) == pytest.approx(counters["length"], abs=0.01)
    assert len(per_position) == 2
    assert any(line.startswith("tokens     24, ") for line in table)
    assert not any("predicted" in line for line in table)


def test_adaptive_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "generate", "-m", "24", "--stats")
    assert re.search(r"speedup +\d\.\d\d, \d\.\d\d predicted", said.err)


def test_below_the_text_where_standard_error_is_for_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("generate", "-m", "6", "--proposer", "off")
    plain = run(capsys, *options)
    said = run(capsys, *options, "--stats", "--events", "-")
    assert said.out.startswith(f"{plain.out}\nproposer ")
    assert all(line.startswith("{") for line in said.err.splitlines())


def test_in_a_terminal() -> None:
    command = [sys.executable, "-m", "speculate.cli", "generate", "--stats", "-m", "24"]
    command += ["--proposer", "mtp", "--depth", "2"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "40"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    assert process.returncode == 0
    text = written.decode()
    assert "\x1b[?25l" in text and "\x1b[?25h" in text
    found = terminal(io.StringIO(text))
    assert sum(line.startswith("proposer  ") for line in found) == 1
    assert re.match(r"24 tokens, \d+ target passes", found[-2])
