"""Results as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

import attrs

from benchmarks.spread import Spread

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
"""Told apart by everyone, also in print."""


@final
@attrs.frozen
class Panel:
    """A set of axes with points, each with its error.

    Attributes:
        title: Above it.
        across: What runs from left to right.
        up: What runs upwards.
        lines: Names, and what was measured at each place.
        level: Where a horizontal line is drawn.
        goal: Where another one is; `None` without.
    """

    title: str
    across: str
    up: str
    lines: Mapping[str, Mapping[str, Spread]]
    level: float = 1.0
    goal: float | None = None


def draw(panels: Sequence[Panel], path: Path, *, bars: bool = False) -> None:
    """Write a PNG, a panel beside the other.

    Args:
        panels: At least one.
        path: The file.
        bars: Bars in place of lines.
    """
    # Takes a second, and may be missing: it is an extra.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 5.2 * len(panels)), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        ticks = list(dict.fromkeys(place for line in panel.lines.values() for place in line))
        width = 0.8 / len(panel.lines)
        for index, (name, line) in enumerate(panel.lines.items()):
            found = [line[place] for place in ticks if place in line]
            shift = (index + 0.5) * width - 0.4 if bars else 0.0
            places = [ticks.index(place) + shift for place in line]
            heights = [one.median for one in found]
            errors = [2 * one.error for one in found]
            colour = COLOURS[index % len(COLOURS)]
            if bars:
                axes.bar(places, heights, width * 0.92, yerr=errors, color=colour, label=name)
            else:
                axes.errorbar(places, heights, errors, fmt="o-", color=colour, label=name)
        axes.axhline(panel.level, color="black", linewidth=1, linestyle=":")
        if panel.goal is not None:
            axes.axhline(panel.goal, color="#d55e00", linewidth=1, linestyle="--")
        axes.set_xticks(range(len(ticks)), ticks, rotation=30 if len(ticks) > 6 else 0)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
