"""Scores as bars, a group for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.picture import COLOURS
from benchmarks.strategy.score import WORKLOADS, Score

TOP: Final = 1.8
"""Bars end here, and say what they would have reached."""


def draw(scores: Sequence[tuple[str, Score]], title: str, path: Path) -> None:
    """Write a PNG.

    Args:
        scores: Names of strategies and their scores.
        title: Above the bars.
        path: Where to.
    """
    # Takes a second, and may be missing: it is an extra.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.86 / len(scores)
    for index, (name, score) in enumerate(scores):
        heights = [score.workloads[workload] for workload in WORKLOADS]
        places = [place + (index + 0.5) * width - 0.43 for place in range(len(WORKLOADS))]
        tops = [min(height, TOP) for height in heights]
        colour = COLOURS[index % len(COLOURS)]
        axes.bar(places, tops, width * 0.92, label=name, color=colour)
        for place, height in zip(places, heights, strict=True):
            at = min(height, TOP) + 0.01
            axes.text(place, at, f"{height:.2f}", ha="center", va="bottom", fontsize=6)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(WORKLOADS)), WORKLOADS)
    axes.set_ylim(0.0, TOP + 0.1)
    axes.set_ylabel("time / best fixed choice in hindsight")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, ncols=len(scores), loc="upper center", bbox_to_anchor=(0.5, -0.08))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
