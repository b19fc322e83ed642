"""What forwards and drafts of the models cost, measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks import rates
from benchmarks.pair import Pair
from benchmarks.turns import Task, Turn, take_turns
from speculate.protocols import Costs

ROWS: Final = (1, 2, 3, 5, 9)
"""Widths that are timed, as the library does."""

DEPTHS: Final = (1, 4)
"""Drafts that are timed. The difference has no catching up in it."""

TURNS: Final = 7


def measured(pair: Pair, prompt: Sequence[int]) -> Costs:
    """Costs behind a prompt, by the clock that benchmarks go by."""
    caches, hidden = rates.prefilled(pair.target, prompt)
    heads = rates.prefilled_head(pair.head, hidden, prompt)
    drafts, _ = rates.prefilled(pair.draft, prompt)
    tasks: dict[str, Task] = {
        f"forward {rows}": rates.forwards(pair.target, caches, prompt, rows) for rows in ROWS
    }
    for depth in DEPTHS:
        chain = rates.head_chain(pair.head, heads, hidden[:, -1:], prompt, depth)
        tasks[f"mtp {depth}"] = chain
        tasks[f"draft {depth}"] = rates.draft_chain(pair.draft, drafts, prompt, 1, depth)
    times = {name: _median(turns) for name, turns in take_turns(tasks, TURNS).items()}
    few, many = DEPTHS
    return Costs(
        context=len(prompt),
        forward={rows: times[f"forward {rows}"] for rows in ROWS},
        draft={
            name: max(times[f"{name} {many}"] - times[f"{name} {few}"], 1e-7) / (many - few)
            for name in ("mtp", "draft")
        },
    )


def _median(turns: Sequence[Turn]) -> float:
    return median(turn.seconds for turn in turns)
