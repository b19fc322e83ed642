"""How far something is, as it is shown."""

from __future__ import annotations

import re

import pytest

from speculate.cli.progress import stages


def test_elsewhere_a_line_for_each_stage_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with stages() as stage:
        with stage("first", 2) as done:
            done()
            done()
            assert capsys.readouterr().err == ""
        assert re.fullmatch(r"first: \d+\.\d s\n", capsys.readouterr().err)
        with pytest.raises(KeyboardInterrupt), stage("second", 2) as done:
            raise KeyboardInterrupt
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for a terminal, says rich
    monkeypatch.setenv("COLUMNS", "80")
    with stages() as stage, stage("first", 4) as done:
        for _ in range(3):
            done()
    written = capsys.readouterr()
    assert written.out == ""
    assert "first" in written.err
    assert "75%" in written.err
    assert "first:" not in written.err
