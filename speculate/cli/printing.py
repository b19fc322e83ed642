"""What may be written: to a terminal, and as JSON."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from speculate.errors import SpeculateWarning


def printable(text: str) -> str:
    """Without control sequences, which names in a stranger's file may hold."""
    return "".join(char if char.isprintable() else "?" for char in text)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print this package's warnings to standard error in a line each, others as Python does."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", SpeculateWarning)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, SpeculateWarning):
                text = printable(" ".join(str(message).split()))
                print(f"speculate: warning: {text}", file=sys.stderr)
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def finite(value: object) -> object:
    """The same with `null` for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
