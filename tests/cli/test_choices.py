"""Who drafted how much over time, in a few columns."""

from __future__ import annotations

import pytest

from speculate.cli._stats_view import WIDTH, Choices
from speculate.protocols import Round


def made(*drafts: tuple[str | None, int]) -> Choices:
    choices = Choices()
    for who, drafted in drafts:
        choices.add(Round(0, who, drafted, drafted, 0, 1, False))
    return choices


def test_a_column_a_round() -> None:
    choices = made(("mtp", 1), (None, 0), ("lookup", 8), ("draft", 4), (None, 0))
    assert choices.depths() == "▁.█▄."
    assert choices.depths(ascii_only=True) == "1.84."
    assert choices.names() == "m.ld."


def test_nothing_drafted_at_all() -> None:
    assert (made((None, 0)).depths(), made((None, 0)).names()) == (".", ".")


def test_long_runs_put_rounds_together() -> None:
    # Two rounds a column: 60 columns stand for 120 rounds.
    choices = made(*[("mtp", 4), (None, 0)] * 30, *[("lookup", 8)] * 60)
    assert choices.names() == "m" * 30 + "l" * 30
    # A mean of 2 of 8, and 8 of 8.
    assert choices.depths() == "▂" * 30 + "█" * 30


def test_who_drafted_most_often_names_a_column() -> None:
    pattern: list[tuple[str | None, int]] = [("mtp", 1), ("lookup", 1), ("lookup", 1), (None, 0)]
    choices = made(*pattern * WIDTH)
    assert choices.names() == "l" * WIDTH


@pytest.mark.parametrize("rounds", [1, 59, 60, 61, 62, 120, 121, 240, 241, 1000, 10_007])
def test_no_round_is_lost_and_no_run_too_long(rounds: int) -> None:
    choices = made(*[("mtp", 1)] * rounds)
    columns = choices.names()
    assert columns == "m" * len(columns)
    assert min(rounds, WIDTH // 2) <= len(columns) <= WIDTH
    assert sum(column.rounds for column in choices.columns) == rounds
    assert sum(column.drafted for column in choices.columns) == rounds
    # All columns but the last stand for equally many.
    assert len({column.rounds for column in choices.columns[:-1]}) <= 1
