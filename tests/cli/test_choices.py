"""Who drafted how much over time, in a few columns."""

from __future__ import annotations

import pytest

from speculate.cli._stats_view import MAX_COLUMNS, DraftHistory
from speculate.protocols import Round


def made(*drafts: tuple[str | None, int]) -> DraftHistory:
    history = DraftHistory()
    for who, drafted in drafts:
        history.add(Round(0, who, drafted, drafted, 0, 1, False))
    return history


def test_a_column_a_round() -> None:
    history = made(("mtp", 1), (None, 0), ("lookup", 8), ("draft", 4), (None, 0))
    assert history.depths() == "▁.█▄."
    assert history.depths(ascii_only=True) == "1.84."
    assert history.names() == "m.ld."


def test_nothing_drafted_at_all() -> None:
    assert (made((None, 0)).depths(), made((None, 0)).names()) == (".", ".")


def test_long_runs_put_rounds_together() -> None:
    # Two rounds a column: 60 columns stand for 120 rounds.
    history = made(*[("mtp", 4), (None, 0)] * 30, *[("lookup", 8)] * 60)
    assert history.names() == "m" * 30 + "l" * 30
    # A mean of 2 of 8, and 8 of 8.
    assert history.depths() == "▂" * 30 + "█" * 30


def test_who_drafted_most_often_names_a_column() -> None:
    pattern: list[tuple[str | None, int]] = [("mtp", 1), ("lookup", 1), ("lookup", 1), (None, 0)]
    history = made(*pattern * MAX_COLUMNS)
    assert history.names() == "l" * MAX_COLUMNS


@pytest.mark.parametrize("rounds", [1, 59, 60, 61, 62, 120, 121, 240, 241, 1000, 10_007])
def test_no_round_is_lost_and_no_run_too_long(rounds: int) -> None:
    history = made(*[("mtp", 1)] * rounds)
    columns = history.names()
    assert columns == "m" * len(columns)
    assert min(rounds, MAX_COLUMNS // 2) <= len(columns) <= MAX_COLUMNS
    assert sum(column.rounds for column in history.columns) == rounds
    assert sum(column.drafted for column in history.columns) == rounds
    # All columns but the last stand for equally many.
    assert len({column.rounds for column in history.columns[:-1]}) <= 1
