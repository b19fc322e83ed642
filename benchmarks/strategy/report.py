"""A run's results, as JSON, as text and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import attrs

from benchmarks.report import Options, save
from benchmarks.strategy.plot import draw
from benchmarks.strategy.score import GOALS, score
from benchmarks.strategy.simulation import Outcome
from benchmarks.strategy.table import table


@final
@attrs.frozen
class Entry:
    """A strategy in a run.

    Attributes:
        name: In tables and plots.
        outcomes: What each request took.
        drawn: Whether it is in the plot.
    """

    name: str
    outcomes: Sequence[Outcome]
    drawn: bool = False


def write(
    entries: Sequence[Entry],
    options: Options,
    name: str,
    title: str,
    facts: Mapping[str, object],
) -> None:
    """Print a table, and write `name.json` and `name.png`.

    Args:
        entries: The strategies.
        options: How this ran.
        name: Of the files.
        title: Of the plot.
        facts: What else the JSON file is to hold.
    """
    scores = [(entry.name, score(entry.outcomes)) for entry in entries]
    strategies = {entry.name: _scores(entry.outcomes) for entry in entries}
    save(options, name, [table(scores)], {**facts, "goals": GOALS, "strategies": strategies})
    drawn = [(entry.name, score(entry.outcomes)) for entry in entries if entry.drawn]
    draw(drawn, title, options.folder / f"{name}.png")


def _scores(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Over all machines, and on each."""
    curves = dict.fromkeys(one.curve for one in outcomes)
    parts = {curve: [one for one in outcomes if one.curve == curve] for curve in curves}
    found = {"all": outcomes, **(parts if len(parts) > 1 else {})}
    return {name: _rounded(score(part).values()) for name, part in found.items()}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}
