"""What cannot be used: exit status 2, one line that says why, and no traceback."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tiny, tokenizers
from tests.support.command_runs import run
from tests.test_loading_errors import REASONS, broken


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Why a command was refused."""
    said = run(capsys, *args)
    assert said.status == 2, said
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("speculate")
    return said.err


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--model", "nowhere"], "there is no such folder"),
        (["--draft-model", "./nowhere"], "there is no such folder"),
        (["--head", "./nowhere"], "there is no such folder"),
        (["--head", "draft"], "no multi-token-prediction head"),
        (["--model", "draft", "--head", "hybrid"], "no multi-token-prediction head is known for"),
        (["--depth", "-1"], "must be from 0 to 48, got -1"),
        (["--depth", "49"], "must be from 0 to 48, got 49"),
        (["--depth", "three"], "must be a whole number, got 'three'"),
        (["--num-draft-tokens", "99"], "must be from 0 to 48"),
        (["--max-tokens", "0"], "must be at least 1, or -1"),
        (["--max-tokens", "-2"], "must be at least 1, or -1"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\udcff"], "the prompt is not UTF-8 text"),
        (["--stop", ""], "a stop string must be text, and not empty"),
        (["--proposer", "luck"], "invalid choice: 'luck'"),
        (["--proposer", "off", "mtp"], "off cannot be combined with other proposers"),
        (["--proposer", "lookup", "mtp", "--depth", "2"], "--depth is for one proposer"),
        (["--proposer"], "expected at least one argument"),
        (["--events", "/nowhere/events"], "cannot be written to /nowhere/events: No such file"),
        (["--events", "/"], "cannot be written to /: Is a directory"),
        (["--events", "a\0b"], "cannot be written to a?b: embedded null byte"),
        (["--kv-bits", "7"], "invalid choice: 7"),
        (["--prefill-step-size", "0"], "must be at least 1"),
        (["--quantized-kv-start", "-1"], "must not be negative"),
        (["--model", "windowed", "--kv-bits", "4"], "has a sliding window"),
        (["--model", "windowed", "--proposer", "draft"], "needs a --draft-model"),
        (["--model", "draft", "--proposer", "mtp"], "has no multi-token-prediction head"),
        (["--model", "draft", "--max-kv-size", "3"], "max_kv_size must be over 4"),
        (["--chat-template", "on"], "has no chat template"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option(capsys: pytest.CaptureFixture[str], args: list[str], reason: str) -> None:
    assert reason in refused(capsys, "generate", "--prompt", "a", *args)


@pytest.mark.parametrize("what", REASONS)
def test_a_broken_folder(capsys: pytest.CaptureFixture[str], dense: Path, what: str) -> None:
    broken(dense, what)
    assert str(dense) in refused(capsys, "generate", "--model", str(dense), "--prompt", "a")


def test_an_empty_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "the prompt is empty" in refused(capsys, "generate", "--prompt", "-")


def test_a_draft_of_another_vocabulary(
    capsys: pytest.CaptureFixture[str], dense: Path, tmp_path: Path
) -> None:
    shifted = tokenizers.write_folder(tmp_path / "shifted", tiny.dense(), tokenizers.DENSE, shift=1)
    base = ("generate", "--model", str(dense), "--prompt", "a", "--draft-model")
    assert "different tokenizer" in refused(capsys, *base, str(shifted))
    assert "different tokenizer" in refused(capsys, *base, "draft")


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: COMMAND" in refused(capsys)
    assert "invalid choice: 'nonsense'" in refused(capsys, "nonsense")


def test_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "speculate.cli", "generate", "--model", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "speculate: error: /nowhere: there is no such folder. Give a model's folder, or a hub "
        "repository as owner/name"
    ]


def test_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("speculate.cli.generate.load_named", interrupted)
    said = run(capsys, "generate")
    assert (said.status, said.err) == (130, "speculate: interrupted\n")
