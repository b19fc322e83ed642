"""What commands write: safe text and JSON, progress, and a description of the machine."""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, final

import attrs
import mlx.core as mx

from speculate import __version__
from speculate._mx import mlx_version
from speculate.errors import OptionError, SpeculateWarning

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

PROGRESS_INTERVAL: Final = 10.0
"""Seconds between progress lines of one stage where standard error is no terminal."""


def printable(text: str) -> str:
    """The text with control characters replaced, which names in a foreign file may contain."""
    return "".join(char if char.isprintable() else "?" for char in text)


def write_error(what: str, place: str | Path, error: Exception) -> OptionError:
    """The error to raise where output cannot be written, with the reason that the system gives."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return OptionError(f"{what} cannot be written to {place}: {reason}")


@contextmanager
def writing(what: str, place: str | Path) -> Iterator[None]:
    """Raise the system's errors in the body as `write_error`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise write_error(what, place, error) from error


def as_json(value: object, indent: int | None = None) -> str:
    """A value as JSON, with `null` for numbers that JSON cannot express."""
    safe = json.loads(json.dumps(value), parse_constant=lambda _: None)
    return json.dumps(safe, indent=indent)


def table_of(names: str, *figures: str) -> Table:
    """A table of a column of names and of columns of figures, without lines."""
    from rich.table import Table

    table = Table(names, box=None, pad_edge=False)
    for title in figures:
        table.add_column(title, justify="right", no_wrap=True)
    return table


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print this package's warnings in one line each on standard error; others are unchanged."""
    with warnings.catch_warnings(action="default", category=SpeculateWarning):
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


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show on a terminal that something takes a while."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@final
@attrs.define
class ProgressBars:
    """Progress of all tasks of a command, and the estimated seconds left, if known."""

    _progress: Progress
    _left: Callable[[], float | None]
    _clock: Callable[[], float]
    _last_line: float

    def add(self, name: str, steps: int | None = None) -> TaskID:
        """Start a task: a bar in a terminal, elsewhere an occasional line."""
        return self._progress.add_task(name, total=steps, left="")

    def rename(self, task: TaskID, name: str, steps: int | None = None) -> None:
        """Change the name of a task, and its number of steps if given."""
        self._progress.update(task, description=name, total=steps)
        self._report(task)

    def advance(self, task: TaskID, steps: int = 1) -> None:
        """Report finished steps of a task."""
        self._progress.update(task, advance=steps)
        self._report(task)

    @contextmanager
    def stage(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        """A stage of work as one task; outside a terminal a line also reports its end."""
        task, began = self.add(name, steps), self._clock()
        yield partial(self.advance, task)
        self._print(f"{name}: {self._clock() - began:.1f} s")

    def _report(self, task: TaskID) -> None:
        """Show the time left, and print a line if the last one is `PROGRESS_INTERVAL` ago."""
        self._progress.update(task, left=self._remaining())
        if self._clock() - self._last_line >= PROGRESS_INTERVAL:
            found = next(each for each in self._progress.tasks if each.id == task)
            done = "" if found.total is None else f": {found.percentage:.0f}%"
            self._print(f"{found.description}{done}")

    def _print(self, text: str) -> None:
        """Print a line with the remaining time on standard error, unless it is a terminal."""
        if self._progress.disable:
            print(f"{text}{self._remaining()}", file=sys.stderr, flush=True)
            self._last_line = self._clock()

    def _remaining(self) -> str:
        left = self._left()
        return f", about {format_duration(left)} left" if left else ""


@contextmanager
def progress_bars(
    left: Callable[[], float | None] = lambda: None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[ProgressBars]:
    """Show progress on standard error, with the seconds left; `None` if they are unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[left]}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield ProgressBars(progress, left, clock, clock())


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def versions() -> dict[str, str]:
    """Versions of this package, mlx, mlx-lm and Python, by name."""
    import mlx_lm

    return {
        "mlx-speculate": __version__,
        "mlx": mlx_version(),
        "mlx-lm": mlx_lm.__version__,
        "Python": platform.python_version(),
    }


def device() -> str:
    """MLX's default device, and the system."""
    kind = mx.default_device().type
    name = mx.device_info(kind).get("device_name", "")
    return f"{kind.name}: {name}, {platform.system()} {platform.machine()}"
