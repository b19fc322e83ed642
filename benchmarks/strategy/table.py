"""Scores as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.report import Table
from benchmarks.strategy.score import GOALS, Score

TITLES: Final = {"plain": "worst / plain", "start": "first 128"}


def table(scores: Iterable[tuple[str, Score]]) -> Table:
    """A line for each strategy; what misses its goal has a mark.

    Args:
        scores: Names of strategies and their scores.
    """
    titles = ["", *(TITLES.get(name, name) for name in GOALS)]
    goals = ["goal", *(f"{goal:.2f}" for goal in GOALS.values())]
    rows = [titles, goals, *([name, *_cells(score)] for name, score in scores)]
    return Table("Time / best fixed choice; what misses its goal is marked *", rows)


def _cells(score: Score) -> list[str]:
    found = score.values()
    return [f"{found[name]:.3f}{'*' if found[name] > GOALS[name] else ''}" for name in GOALS]
