"""Raises KeyboardInterrupt at any line of the package, as Ctrl-C may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, final

import speculate

PACKAGE: Final = str(Path(speculate.__file__).parent)
NOT_OURS: Final = str(Path(PACKAGE) / "testing")
"""Fakes, which stand for parts of somebody else."""

Trace = Callable[[FrameType, str, Any], Any]


@final
class Interrupter:
    """A `with` block in which one line of the package raises instead of being executed.

    Args:
        at: Which of the lines that are executed, 1 for the first; 0 for none.

    Attributes:
        lines: That were executed so far.
        where: The line that raised.
    """

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self.lines: int = 0
        self.where: str = ""

    def __enter__(self) -> Interrupter:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: object) -> Trace | None:
        file = frame.f_code.co_filename
        return self._line if file.startswith(PACKAGE) and not file.startswith(NOT_OURS) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Trace:
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                code = frame.f_code
                file = Path(code.co_filename).relative_to(PACKAGE)
                self.where = f"{file}:{frame.f_lineno} {code.co_name}"
                raise KeyboardInterrupt(self.where)
        return self._line
