"""`speculate demo`, which is also `make demo`; and what the command says of itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

import speculate as sp
from speculate.cli import demo
from speculate.cli.main import COMMANDS
from speculate.loading import demo_prompt
from speculate.protocols import Round
from tests.support.command_runs import run

ROOT: Final = Path(__file__).parents[2]


def test_the_same_text_three_times(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "demo", "--max-tokens", "24", "--depth", "2")
    assert (said.status, said.err) == (0, "")
    model, tokenizer = sp.load()
    text = sp.generate(model, tokenizer, demo_prompt(), max_tokens=24)
    assert said.out.startswith(demo_prompt() + text)
    assert said.out.endswith("The three texts are identical.\n")
    for who in demo.PROPOSERS.values():
        (row,) = (line for line in said.out.splitlines() if line.startswith(who))
        tokens, passes = row.removeprefix(who).split()[:2]
        assert int(tokens) == 24
        assert int(passes) == 24 if "plain" in who else 8 <= int(passes) < 24


def test_texts_that_differ_are_said_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter(range(100))

    def generated(
        *args: object, observer: Callable[[Round], None], **options: object
    ) -> list[SimpleNamespace]:
        observer(Round(0, None, 0, 0, 0, 1, False))
        return [SimpleNamespace(token=next(runs), text="text", generation_tps=1.0)]

    monkeypatch.setattr(demo, "stream_generate", generated)
    said = run(capsys, "demo")
    assert said.status == 1
    assert "DIFFER" in said.out


def test_as_make_demo_runs_it() -> None:
    program = ["tests.support.on_cpu", "speculate.cli.demo"]
    command = [sys.executable, "-m", *program, "--max-tokens", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.endswith("The three texts are identical.\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "--version")
    assert (said.status, said.out) == (0, f"speculate {version('mlx-speculate')}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said = run(capsys, name, "--help")
    assert said.status == 0
    assert f"Example: {COMMANDS[name].example}\n" in said.out
    assert COMMANDS[name].example.startswith(f"speculate {name}")


@pytest.mark.parametrize("name", ["generate", "demo"])
def test_the_example_works(capsys: pytest.CaptureFixture[str], name: str) -> None:
    _, *args = shlex.split(COMMANDS[name].example)
    assert run(capsys, *args, "--max-tokens", "4").status == 0


def test_help_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "--help")
    assert set(COMMANDS) <= set(said.out.split())
    assert all(f"\n  {command.example}\n" in said.out for command in COMMANDS.values())
