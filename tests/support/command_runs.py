"""Running the command in this process, and reading what it says."""

from __future__ import annotations

import re
from typing import Final

import attrs
import pytest

from speculate.cli.main import main

COUNTERS: Final = re.compile(
    r"(?P<tokens>\d+) tokens, (?P<passes>\d+) target passes, "
    r"(nothing drafted|drafts accepted (?P<accepted>\d+) of (?P<drafted>\d+) "
    r"\((?P<rate>\d+)%\), "
    r"mean acceptance length (?P<length>[\d.]+)), [\d.]+ tokens/s(, seed \d+)?"
)


@attrs.frozen
class Said:
    """What a command wrote.

    Attributes:
        status: Its exit status.
        out: On standard output.
        err: On standard error.
    """

    status: int
    out: str
    err: str

    @property
    def notes(self) -> str:
        """What stands on standard error before the counters."""
        return self.err[: self.err.rstrip("\n").rfind("\n") + 1]

    def counters(self) -> dict[str, float]:
        """The counters of `generate`, by name: the last line on standard error."""
        found = COUNTERS.fullmatch(self.err.splitlines()[-1])
        assert found is not None, self.err
        return {name: float(value) for name, value in found.groupdict().items() if value}


def run(capsys: pytest.CaptureFixture[str], *args: str) -> Said:
    """The command, in this process. `--help` and the like exit, which counts as a status."""
    capsys.readouterr()
    try:
        status = main(args)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        status = leaving.code
    written = capsys.readouterr()
    return Said(status, written.out, written.err)
