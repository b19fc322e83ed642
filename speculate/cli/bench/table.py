"""The results as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from speculate.cli.bench.results import Outcome, Results, best_fixed
from speculate.cli.bench.runs import ADAPTIVE

UNKNOWN: Final = "?"
"""In place of a speedup that may be chance."""


def show(results: Results) -> None:
    """Print the results."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    forward = Table(f"rows, {results.forward.context} tokens in front", box=None, pad_edge=False)
    for rows in results.forward.seconds:
        forward.add_column(str(rows), justify="right", no_wrap=True)
    times = [f"{seconds * 1e3:.3g}" for seconds in results.forward.seconds.values()]
    forward.add_row("milliseconds", *times)
    forward.add_row("v(T)", *(f"{v:.2f}" for v in results.forward.relative.values()))
    console.print(forward)
    console.print()
    speedup = Table("speedup", box=None, pad_edge=False)
    for workload in results.workloads:
        speedup.add_column(workload, justify="right", no_wrap=True)
    speedup.add_column("tokens/pass", justify="right", no_wrap=True)
    speedup.add_column("accepted", justify="right", no_wrap=True)
    for way in next(iter(results.workloads.values())):
        speedup.add_row(way, *_row(results, way))
    console.print(speedup)
    console.print()
    for line in lines(results):
        console.print(line, markup=False, soft_wrap=True)


def lines(results: Results) -> Iterator[str]:
    """What the tables come to."""
    for workload, outcomes in results.workloads.items():
        best = best_fixed(outcomes)
        yield (
            f"{workload}: best in hindsight {best}, {shown(outcomes[best])}; "
            f"{ADAPTIVE} {shown(outcomes[ADAPTIVE])}"
        )
        unknown = [way for way, outcome in outcomes.items() if outcome.speedup is None]
        if unknown:
            spread = max(outcomes[way].spread for way in unknown)
            yield (
                f"{workload}: no speedup is given for {', '.join(unknown)}: two runs of the same "
                f"differ by up to {spread:.0%}, and that is more than these ways gain or lose"
            )
    for name, chances in results.survival.items():
        found = " ".join(f"{chance:.0%}" for chance in chances)
        yield f"{name}: drafts right up to each position {found or 'none, nothing was drafted'}"
    yield f"two runs of the same differ by {results.disturbance:.0%} in the median"
    if results.same_text:
        yield "All ways gave the same texts."
    else:
        yield (
            "The texts DIFFER. On a GPU several rows may round differently from one, where two "
            "tokens are as good as equally likely; on a CPU this is a bug: please report it."
        )


def shown(outcome: Outcome) -> str:
    """The speedup, if it is known."""
    return UNKNOWN if outcome.speedup is None else f"{outcome.speedup:.2f}"


def _row(results: Results, way: str) -> list[str]:
    found = [outcomes[way] for outcomes in results.workloads.values()]
    tokens, passes = (sum(o.tokens for o in found), sum(o.passes for o in found))
    accepted, drafted = (
        sum(o.accepted_tokens for o in found),
        sum(o.draft_tokens for o in found),
    )
    return [
        *(shown(outcome) for outcome in found),
        f"{tokens / passes:.2f}",
        f"{accepted} of {drafted}" if drafted else "",
    ]
