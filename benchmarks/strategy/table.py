"""Scores as a table of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.strategy.score import GOALS, Score

TITLES: Final = {"adversarial": "advers.", "plain": "worst/plain", "start": "first 128"}


def table(scores: Iterable[tuple[str, Score]]) -> str:
    """A line for each strategy; what misses its goal has a mark.

    Args:
        scores: Names of strategies and their scores.
    """
    titles = ["time / best fixed choice", *(TITLES.get(name, name) for name in GOALS)]
    goals = ["goal, at most", *(f"{goal:.2f} " for goal in GOALS.values())]
    rows = [titles, goals, *([name, *_cells(score)] for name, score in scores)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _cells(score: Score) -> list[str]:
    found = score.values()
    return [f"{found[name]:.3f}{'*' if found[name] > GOALS[name] else ' '}" for name in GOALS]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
