"""What a run came to, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from speculate.cli.telemetry.choices import Choices
from speculate.decoding.stats import DraftStats, Stats
from speculate.protocols import Round

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@final
class Summary:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._choices = Choices()
        self._newest: Round | None = None

    def add(self, round: Round, stats: Stats) -> None:
        """Take in a round, and the counters with it."""
        self._stats, self._newest = stats, round
        self._choices.add(round)

    def rendered(self, *, newest: bool, ascii_only: bool) -> RenderableType:
        """The tables.

        Args:
            newest: Say what the newest round did.
            ascii_only: Use no other characters.
        """
        from rich.console import Group
        from rich.table import Table

        lines = Table(box=None, show_header=False, pad_edge=False)
        lines.add_column(style="bold", no_wrap=True)
        lines.add_column(no_wrap=True)
        if self._newest is None:
            lines.add_row("tokens", "none yet")
            return lines
        lines.add_row("tokens", _tokens(self._stats))
        lines.add_row("speedup", _speedup(self._stats))
        if newest:
            lines.add_row("drafts now", _choice(self._newest))
        lines.add_row("depths", self._choices.depths(ascii_only=ascii_only))
        lines.add_row("by", self._choices.names())
        return Group(self._by_proposer(), "", lines)

    def _by_proposer(self) -> Table:
        from rich.table import Table

        table = Table("who drafts", box=None, pad_edge=False)
        for title in ("rounds", "time", "drafted", "accepted", "rate"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("accepted per position, %")
        stats = self._stats
        for name, own in stats.by_proposer.items():
            drafted, accepted = str(own.draft_tokens), str(own.accepted_tokens)
            time = _share(own.seconds, stats.seconds)
            rate = _share(own.accepted_tokens, own.draft_tokens)
            table.add_row(name, str(own.drafts), time, drafted, accepted, rate, _per_position(own))
        plain, seconds = stats.rounds - stats.drafts, stats.seconds - stats.total.seconds
        if plain:
            table.add_row("nobody", str(plain), _share(seconds, stats.seconds))
        return table


def _tokens(stats: Stats) -> str:
    rate = stats.round_tokens / stats.seconds if stats.seconds else 0.0
    each = stats.round_tokens / stats.rounds
    return f"{stats.round_tokens}, {rate:.1f} a second, {each:.2f} a round"


def _speedup(stats: Stats) -> str:
    actual, predicted = stats.actual_speedup, stats.predicted_speedup
    found = "unknown: nothing tells what a plain step takes" if actual is None else f"{actual:.2f}"
    return found if predicted is None else f"{found}, {predicted:.2f} predicted"


def _choice(round: Round) -> str:
    if round.proposer is None:
        return "nobody"
    return f"{round.proposer}, {round.drafted} deep, {round.accepted} accepted"


def _per_position(own: DraftStats) -> str:
    pairs = zip(own.accepted_per_position, own.drafted_per_position, strict=True)
    return " ".join(f"{100 * accepted / drafted:.0f}" for accepted, drafted in pairs)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else ""
