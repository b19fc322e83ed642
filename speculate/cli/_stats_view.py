"""Statistics of a generation while it runs: tables, a live view, and JSON lines."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Final, cast, final

import attrs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from speculate.cli._arguments import STANDARD_STREAM
from speculate.cli._console import as_json, table_of, writing
from speculate.cli._models import share_per_position
from speculate.decoding.stats import Stats
from speculate.protocols import Round

MAX_COLUMNS: Final = 60
"""Columns of the history at most. When they are full, each one stands for twice as many rounds."""

NO_DRAFT: Final = "."
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "12345678"
"""Symbols of the history: no draft, and bars of increasing height, also in ASCII only."""

EARLIER_KEYS: Final = {
    "asked": "planned_proposer",
    "cut": "truncated",
    "ahead": "overlapped_seconds",
    "predicted": "predicted_speedup",
    "plain_seconds": "baseline_seconds",
}
"""Keys of events in earlier versions, written too, and the fields of a round that they name."""


@final
@attrs.frozen
class HistoryColumn:
    """Consecutive rounds in one column of the history, with the number of drafts by proposer."""

    rounds: int
    drafted: int
    proposers: Counter[str]

    def merge(self, other: HistoryColumn) -> HistoryColumn:
        """Both columns in one."""
        proposers = self.proposers + other.proposers
        return HistoryColumn(self.rounds + other.rounds, self.drafted + other.drafted, proposers)


@final
class DraftHistory:
    """Proposers and draft depths over time, in a bounded number of columns of equal length."""

    def __init__(self) -> None:
        self.columns: list[HistoryColumn] = []
        self._step = 1

    def add(self, round: Round) -> None:
        """Add a round."""
        proposers = Counter([] if round.proposer is None else [round.proposer])
        new = HistoryColumn(1, round.drafted, proposers)
        if self.columns and self.columns[-1].rounds < self._step:
            self.columns[-1] = self.columns[-1].merge(new)
            return
        if len(self.columns) == MAX_COLUMNS:
            self._step *= 2
            left, right = self.columns[::2], self.columns[1::2]
            self.columns = [one.merge(two) for one, two in zip(left, right, strict=True)]
        self.columns.append(new)

    def depths(self, *, ascii_only: bool = False) -> str:
        """A bar for the depth of each column, relative to the deepest; a dot for no draft."""
        bars = ASCII_BARS if ascii_only else BARS
        depths = [column.drafted / column.rounds for column in self.columns]
        most = max(depths)
        return "".join(bars[int(each / most * 7.999)] if each else NO_DRAFT for each in depths)

    def names(self) -> str:
        """First letter of the most frequent proposer of each column; a dot for no draft."""
        most_frequent = (column.proposers.most_common(1) for column in self.columns)
        return "".join(found[0][0][:1] if found else NO_DRAFT for found in most_frequent)


@final
class StatsTable:
    """The counters and the draft history so far, as tables."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._history = DraftHistory()
        self._last: Round | None = None

    def add(self, round: Round, stats: Stats) -> None:
        """Add a round, with the counters up to and including it."""
        self._stats, self._last = stats, round
        self._history.add(round)

    def rendered(self, *, ascii_only: bool, last_round: bool) -> RenderableType:
        """The tables, with or without a line about the last round."""
        stats, last = self._stats, self._last
        lines = Table(box=None, show_header=False, pad_edge=False)
        lines.add_column(style="bold", no_wrap=True)
        lines.add_column(no_wrap=True)
        if last is None:
            lines.add_row("tokens", "none yet")
            return lines
        rate = stats.round_tokens / stats.seconds if stats.seconds else 0.0
        each = stats.round_tokens / stats.rounds
        text = f"{stats.round_tokens}, {rate:.1f} per second, {each:.2f} per round"
        lines.add_row("tokens", text)
        actual, predicted = stats.actual_speedup, stats.predicted_speedup
        unknown = "unknown: the time of plain decoding is unknown"
        speedup = unknown if actual is None else f"{actual:.2f}"
        later = "" if predicted is None else f", {predicted:.2f} predicted"
        lines.add_row("speedup", speedup + later)
        if last_round:
            counts = f", {last.drafted} drafted, {last.accepted} accepted"
            lines.add_row("last round", last.proposer + counts if last.proposer else "no draft")
        lines.add_row("depths", self._history.depths(ascii_only=ascii_only))
        lines.add_row("drafts by", self._history.names())
        return Group(_by_proposer(stats), "", lines)


def _by_proposer(stats: Stats) -> Table:
    table = table_of("proposer", "rounds", "time", "drafted", "accepted", "rate")
    table.add_column("accepted per position, %")
    for name, own in stats.by_proposer.items():
        drafted, accepted = str(own.draft_tokens), str(own.accepted_tokens)
        time, rate = _share(own.seconds, stats.seconds), f"{own.acceptance_rate:.0%}"
        shares = " ".join(f"{100 * share:.0f}" for share in share_per_position(own))
        table.add_row(name, str(own.drafts), time, drafted, accepted, rate, shares)
    if plain := stats.rounds - stats.drafts:
        seconds = stats.seconds - stats.total.seconds
        table.add_row("no draft", str(plain), _share(seconds, stats.seconds))
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else ""


@contextmanager
def text_view(*, stats: bool, quiet: bool) -> Iterator[PlainView | LiveView]:
    """Show generated text on standard output, and statistics if wanted.

    These are live in a terminal, elsewhere in a table on standard error after the text, or on
    standard output if standard error is to stay quiet.
    """
    console = Console(highlight=False)
    if stats and not quiet and console.is_terminal and not console.is_dumb_terminal:
        live = LiveView(console, interval=0.1)
        try:
            yield live
        finally:
            live.end()
    else:
        view = PlainView(Console(stderr=not quiet, highlight=False) if stats else None)
        yield view
        view.end()


@final
class PlainView:
    """Streams text, and prints a table on a console after it; no table without a console."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._table = StatsTable()
        self._last_char = ""

    def write(self, text: str, /) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last_char = text[-1:] or self._last_char

    def add_round(self, round: Round, stats: Stats, /) -> None:
        self._table.add(round, stats)

    def end(self) -> None:
        if self._last_char != "\n":
            print()
        sys.stdout.flush()
        if self._console is not None:
            ascii_only = self._console.options.ascii_only
            table = self._table.rendered(ascii_only=ascii_only, last_round=False)
            self._console.print(Group("", table, ""))


@final
class LiveView:
    """Streams text above statistics that are updated in place, at most every `interval` seconds."""

    def __init__(self, console: Console, interval: float) -> None:
        self._console = console
        self._interval = interval
        self._table = StatsTable()
        self._text = ""
        self._running = True
        self._drawn = time.monotonic()
        # No refresh thread: it could show a round half counted, and would slow rounds down.
        self._live = Live(
            console=console,
            get_renderable=self._rendered,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def write(self, text: str, /) -> None:
        self._text += text
        if time.monotonic() - self._drawn >= self._interval:
            self._draw()

    def add_round(self, round: Round, stats: Stats, /) -> None:
        self._table.add(round, stats)

    def end(self) -> None:
        self._running = False
        if self._text and not self._text.endswith("\n"):
            self._text += "\n"
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        """Print the finished lines of text, and the statistics below them, in one write."""
        lines, newline, self._text = self._text.rpartition("\n")
        with self._console:
            if newline:
                self._console.print(Text(lines), soft_wrap=True)
            self._live.refresh()
        self._drawn = time.monotonic()

    def _rendered(self) -> RenderableType:
        screen = self._console.options
        table = self._table.rendered(ascii_only=screen.ascii_only, last_round=self._running)
        # Of an unfinished line of text, three lines of the screen.
        line = Text(self._text[-3 * screen.max_width :])
        return Group(line, "", table) if self._running else Group("", table, "")


@final
@attrs.frozen
class EventLog:
    """Writes each round as a JSON line in one unbuffered write: a killed run leaves whole lines."""

    file: BinaryIO
    name: str

    def __call__(self, round: Round, stats: Stats, /) -> None:
        """Write a round, with the counters up to and including it."""
        totals = {
            "seed": stats.seed,
            "rounds": stats.rounds,
            "tokens": stats.round_tokens,
            "seconds": stats.seconds,
            "drafts": stats.drafts,
            "draft_tokens": stats.draft_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "predicted_speedup": stats.predicted_speedup,
            "actual_speedup": stats.actual_speedup,
        }
        event = attrs.asdict(round)
        event |= {earlier: event[name] for earlier, name in EARLIER_KEYS.items()}
        line = as_json({**event, "totals": totals}).encode() + b"\n"
        with writing("events", self.name):
            while line:
                line = line[self.file.write(line) :]
            self.file.flush()


@contextmanager
def event_log(name: str) -> Iterator[EventLog]:
    """Open an event log: the path of a file to append to, or `-` for standard error."""
    if name == STANDARD_STREAM:
        yield EventLog(sys.stderr.buffer, "standard error")
        return
    with ExitStack() as stack:
        with writing("events", name):
            # Unbuffered, so that a line is written whole or not at all.
            file = stack.enter_context(open(name, "ab", buffering=0))
        yield EventLog(cast(BinaryIO, file), name)
