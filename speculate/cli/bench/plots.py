"""The results as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

from speculate.cli.bench.results import Choice, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final[Mapping[str | None, str]] = {
    "mtp": "#0072b2",
    "draft": "#d55e00",
    "lookup": "#009e73",
    None: "#777777",
}
"""Of the proposers: told apart by everyone, also in print."""

FILLS: Final = ("#56b4e9", "#e69f00", "#cc79a7", "#999999")
"""Of the workloads."""

ENOUGH: Final = 3
"""Rounds from which on a median is drawn."""


def draw(results: Results, path: Path) -> None:
    """Draw the results into a PNG file.

    Args:
        results: What to draw.
        path: The file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    _forward(panels[0][0], results)
    _survival(panels[0][1], results.survival)
    _choices(panels[1][0], results.choices)
    _speedup(panels[1][1], results)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
        panel.set_axisbelow(True)
    drafts = f", draft model {results.draft_model}" if results.draft_model else ""
    figure.suptitle(f"{results.model}{drafts} on {results.machine['device']}")
    figure.savefig(path, dpi=120, format="png")


def _forward(panel: Axes, results: Results) -> None:
    relative = results.forward.relative
    rows = list(relative)
    panel.plot(rows, list(relative.values()), "o-", color=COLOURS[None], label="measured")
    panel.plot(rows, rows, ":", color="black", linewidth=1, label="rows one by one")
    panel.set_title(f"Forward of T rows, {results.forward.context} tokens in front")
    panel.set_xlabel("T, rows")
    panel.set_ylabel("v(T), time relative to one row")
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)


def _survival(panel: Axes, survival: Mapping[str, Sequence[float]]) -> None:
    for name, chances in survival.items():
        positions = range(1, len(chances) + 1)
        panel.plot(positions, list(chances), "o-", color=COLOURS.get(name), label=name)
    panel.set_title("Drafts that are right so far")
    panel.set_xlabel("position in the draft")
    panel.set_ylabel("part of the drafts")
    panel.set_ylim(0, 1.02)
    if survival:
        panel.legend(frameon=False)


def _choices(panel: Axes, choices: Sequence[Choice]) -> None:
    drawn = [choice for choice in choices if choice.depth and choice.rounds >= ENOUGH]
    for name in dict.fromkeys(choice.proposer for choice in drawn):
        own = [choice for choice in drawn if choice.proposer == name]
        depths, times = [c.depth for c in own], [c.relative for c in own]
        panel.plot(depths, times, "o-", color=COLOURS.get(name), label=name)
    panel.axhline(1, color="black", linewidth=1, linestyle=":", label="nobody")
    panel.set_title("Time of a round, by who drafts")
    panel.set_xlabel("tokens drafted")
    panel.set_ylabel("relative to a round without drafts")
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)


def _speedup(panel: Axes, results: Results) -> None:
    ways = list(next(iter(results.workloads.values())))
    width = 0.8 / len(results.workloads)
    for index, (workload, outcomes) in enumerate(results.workloads.items()):
        places = [place + (index + 0.5) * width - 0.4 for place in range(len(ways))]
        speedups = [outcomes[way].speedup for way in ways]
        heights = [nan if speedup is None else speedup for speedup in speedups]
        panel.bar(places, heights, width, color=FILLS[index % len(FILLS)], label=workload)
    panel.axhline(1, color="black", linewidth=1, linestyle=":")
    panel.set_title("Speedup over decoding without drafts, if known")
    panel.set_xticks(range(len(ways)), ways, rotation=45, ha="right")
    panel.set_ylabel("speedup")
    panel.legend(frameon=False)
