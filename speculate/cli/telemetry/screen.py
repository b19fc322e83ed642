"""Where a text appears as it comes, and what it took beside it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from typing_extensions import Protocol

from speculate.cli.telemetry.summary import Summary
from speculate.decoding.stats import Stats
from speculate.protocols import Round

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH: Final = 0.1
"""Seconds between two pictures of the live view."""

LINES: Final = 3
"""Of an unfinished line of text, so many are shown in the live view."""


class Screen(Protocol):
    """Shows a text, and hears of its rounds."""

    def write(self, text: str, /) -> None:
        """The next piece of text."""

    def report(self, round: Round, stats: Stats, /) -> None:
        """The next round, and all up to it."""

    def end(self) -> None:
        """Nothing comes after. Leaves the cursor at the beginning of a line."""


@contextmanager
def screen(*, stats: bool, quiet: bool) -> Iterator[Screen]:
    """Standard output for the text.

    Args:
        stats: Show what the text took: a view that is kept current in a terminal, elsewhere
            a table after the text, on standard error.
        quiet: Standard error is for something else: the table stands below the text instead.
    """
    if not stats:
        shown: Screen = Printed()
        yield shown
        shown.end()
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not quiet and console.is_terminal and not console.is_dumb_terminal:
        shown = Live(console, REFRESH)
        try:
            yield shown
        finally:
            shown.end()
        return
    shown = Printed(Console(stderr=not quiet, highlight=False))
    yield shown
    shown.end()


@final
class Printed:
    """Text as it comes, and a table below it.

    Args:
        console: Where to print the table; `None` for no table.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._summary = Summary()
        self._last = ""

    def write(self, text: str, /) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text[-1:] or self._last

    def report(self, round: Round, stats: Stats, /) -> None:
        if self._console is not None:
            self._summary.add(round, stats)

    def end(self) -> None:
        if self._last != "\n":
            print()
        sys.stdout.flush()
        if self._console is not None:
            ascii_only = self._console.options.ascii_only
            self._console.print()
            self._console.print(self._summary.rendered(newest=False, ascii_only=ascii_only))
            self._console.print()


@final
class Live:
    """Text above a view of the run so far, which is kept current.

    Args:
        console: A terminal.
        every: Seconds between two pictures, at least.
    """

    def __init__(self, console: Console, every: float) -> None:
        from rich.live import Live as View

        self._console = console
        self._every = every
        self._summary = Summary()
        self._text = ""
        self._running = True
        self._drawn = time.monotonic()
        # No thread draws: it would see half a round, and take the time of one.
        self._view = View(
            console=console,
            get_renderable=self._picture,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._view.start()

    def write(self, text: str, /) -> None:
        self._text += text
        if time.monotonic() - self._drawn >= self._every:
            self._draw()

    def report(self, round: Round, stats: Stats, /) -> None:
        self._summary.add(round, stats)

    def end(self) -> None:
        self._running = False
        if self._text and not self._text.endswith("\n"):
            self._text += "\n"
        self._draw()
        self._view.stop()

    def _draw(self) -> None:
        """Print the lines that are complete, and the view below them, in one go."""
        from rich.text import Text

        lines, newline, self._text = self._text.rpartition("\n")
        with self._console:
            if newline:
                self._console.print(Text(lines), soft_wrap=True)
            self._view.refresh()
        self._drawn = time.monotonic()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        options = self._console.options
        table = self._summary.rendered(newest=self._running, ascii_only=options.ascii_only)
        line = Text(self._text[-LINES * options.max_width :])
        return Group(line, "", table) if self._running else Group("", table, "")
