"""Standard input, output and error that are closed, full, given up by a reader or not in UTF-8."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, cast, final

import attrs
import pytest

from speculate import verify as checks
from speculate.cli import bench as bench
from speculate.cli.main import COMMANDS, main
from speculate.verify import Case, Result
from tests.cli.test_bench import results_of, written_out
from tests.cli.test_verify import bring
from tests.support import tiny, tokenizers
from tests.support.reference import get

REFUSED: Final = "speculate: error: output cannot be written to standard output: "
FULL: Final = f"{REFUSED}No space left on device"
CLOSED: Final = f"{REFUSED}it is closed"

needs_full_disk = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no full disk to write to"
)


@final
class Bytes(io.RawIOBase):
    """Where a stream's bytes go: kept, or refused with an error of the system's."""

    def __init__(self, refusal: int | None = None) -> None:
        self.refusal = refusal
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.written += bytes(data)
        return len(data)


def said(
    patch: pytest.MonkeyPatch,
    args: list[str],
    out: Bytes,
    err: Bytes,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> int:
    """The status of a command that writes to these; its streams are left as they were."""
    with patch.context() as inner:
        for name, target in (("stdout", out), ("stderr", err)):
            text = io.TextIOWrapper(io.BufferedWriter(cast(Any, target)), encoding, errors)
            inner.setattr(sys, name, text)
        streams = sys.stdout, sys.stderr
        try:
            status = main(args)
        except SystemExit as leaving:
            assert isinstance(leaving.code, int)
            status = leaving.code
        assert (sys.stdout, sys.stderr) == streams
        assert all((s.encoding, s.errors) == (encoding, errors) for s in streams)
        out.refusal = err.refusal = None  # of what is still in a buffer
        for stream in streams:
            stream.flush()
    return status


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Arguments of every command, made to take little time, with letters that ASCII does not have.

    The last one ends with an error.
    """
    dense = str(tokenizers.write_folder(tmp_path / "dense\u00e9", tiny.dense(), tokenizers.DENSE))
    results = attrs.evolve(results_of(written_out()), model="dens\u00e9")
    monkeypatch.setattr(bench, "_measure", lambda _: results)
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    bring(monkeypatch, get("shallow").model)
    case = Case("sequence", "\u00e9", lambda: Result(1, "tokens"))
    monkeypatch.setattr(checks, "cases", lambda _: [case])
    found = [
        ["generate", "--model", dense, "-p", "ab\u20ac", "-m", "8", "--stats"],
        ["demo", "-p", "\u00e9", "-m", "1"],
        ["bench", "--output", str(tmp_path / "bench\u00e9")],
        ["verify", "--model", "m\u00efne", "--json", "-"],
        ["inspect", dense],
        ["extract-head", "hybrid", "--force", "--output", str(tmp_path / "head\u00e9")],
        ["convert", "hybrid", str(tmp_path / "converted\u00e9"), "--dequantize", "--force"],
    ]
    assert [args[0] for args in found] == [*COMMANDS]
    return [*found, ["bench", "--help"], ["--version"], ["inspect", "\u00e9"]]


@pytest.mark.parametrize(
    ("refusal", "status", "line"),
    [(errno.ENOSPC, 2, FULL), (errno.EPIPE, 141, None)],
    ids=["full", "given up"],
)
def test_output_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
    commands: list[list[str]],
    refusal: int,
    status: int,
    line: str | None,
) -> None:
    for args in commands[:-1]:
        out, err = Bytes(refusal), Bytes()
        assert said(monkeypatch, args, out, err) == status, args
        lines = err.written.decode().splitlines()
        assert [text for text in lines if "error" in text] == ([line] if line else []), args


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"?"), ("latin-1", b"\xe9")])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_cannot_be_shown_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
    commands: list[list[str]],
    encoding: str,
    shown: bytes,
    errors: str,
) -> None:
    for args in commands:
        out, err = Bytes(), Bytes()
        status = said(monkeypatch, args, out, err, encoding, errors)
        assert status == (2 if args is commands[-1] else 0), (args, err.written)
        assert out.written or status
        if "\u00e9" in args[-1]:
            assert shown in out.written + err.written


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EPIPE])
def test_standard_error_that_cannot_be_written_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]], refusal: int
) -> None:
    for args in (commands[0], commands[3], commands[-1], ["nonsense"]):
        whole, out = Bytes(), Bytes()
        status = said(monkeypatch, args, whole, Bytes())
        assert said(monkeypatch, args, out, Bytes(refusal)) == status, args
        assert out.written == whole.written, args


@pytest.mark.parametrize("args", [["--version"], ["inspect", "hybrid"], ["nonsense"]])
def test_without_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stream in (None, closed):
        with monkeypatch.context() as inner:
            inner.setattr(sys, "stdout", stream)
            assert main(args) == 2
        assert capsys.readouterr().err == f"{CLOSED}\n"


def test_without_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dense = str(tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE))
    base = ["generate", "--model", dense, "-p", "ab", "-m", "8"]
    assert main(base) == 0
    text = capsys.readouterr().out
    monkeypatch.setattr(sys, "stderr", None)
    assert main(base) == 0
    assert capsys.readouterr().out == text
    assert main(["inspect", "/nowhere"]) == 2
    # Events would be lost, and they were asked for.
    assert main([*base, "--events", "-"]) == 2


class NotForReading(io.StringIO):
    def read(self, *_: object) -> str:
        raise io.UnsupportedOperation("not readable")


def test_without_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream, reason in ((None, "it is closed"), (NotForReading(), "not readable")):
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["generate", "-p", "-"]) == 2
        line = f"speculate: error: the prompt cannot be read from standard input: {reason}\n"
        assert capsys.readouterr() == ("", line)


def shell(args: str, **settings: str) -> tuple[int, str, str]:
    """What becomes of a command in a process of its own: its status, and what it wrote."""
    environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    done = subprocess.run(
        f"{sys.executable} -m speculate {args}",
        shell=True,
        capture_output=True,
        text=True,
        env={**environment, **settings},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@needs_full_disk
@pytest.mark.parametrize(
    ("args", "status", "err"),
    [
        ("--help > /dev/full", 2, f"{FULL}\n"),
        ("inspect hybrid >&-", 2, f"{CLOSED}\n"),
        ("nonsense 2> /dev/full", 2, ""),
        ("inspect /nowhere 2>&-", 2, ""),
    ],
)
def test_in_a_process_of_its_own_nothing_is_added_at_the_end(
    args: str, status: int, err: str
) -> None:
    assert shell(args) == (status, "", err)


def test_a_reader_that_has_left_before_anything_is_written() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "speculate", "inspect", "hybrid"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_any_stream_but_output_a_model_can_be_loaded(tmp_path: Path) -> None:
    # Its file would be given the number of standard input.
    dense = tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE)
    status, out, _ = shell(
        f"generate --model {dense} -p \u20ac -m 4 <&- 2>&-", PYTHONIOENCODING="ascii"
    )
    assert (status, out[-1]) == (0, "\n")


def test_an_interrupt_is_reported_in_a_line(tmp_path: Path) -> None:
    dense = str(tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE))
    command = [sys.executable, "-m", "speculate", "generate", "--model", dense]
    options = ["-p", "abc", "-m", "-1", "--max-kv-size", "64", "--proposer", "off"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (130, b"speculate: interrupted\n")
