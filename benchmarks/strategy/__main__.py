"""`python -m benchmarks.strategy`: strategies on a grown model; with `--simulate` on traces."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import regime
from benchmarks.grow import HYBRIDS, grown_hybrid
from benchmarks.pair import Pair, grown_pair_draft
from benchmarks.report import RESULTS, Options
from benchmarks.strategy import measured, simulation
from benchmarks.strategy.costs import measured as measured_costs
from benchmarks.strategy.fixed_choices import OFF, Arm
from benchmarks.strategy.machine import CURVES, DRAFT_TIMES
from benchmarks.strategy.recording import TRACES, Recording, recordings
from benchmarks.strategy.report import Entry, write
from benchmarks.strategy.score import WORKLOADS
from benchmarks.strategy.simulation import Bounds, Maker, Memory, Outcome

Key = TypeVar("Key", int, str)

REQUESTS: Final = 4
"""Of each workload that are really decoded."""

DRAWN: Final = ("adaptive, cold", "adaptive, shuffled", "mtp 3", "tiers, cold", "UCB1, cold")

SIMULATED: Final[Sequence[tuple[str, Maker, Sequence[Memory]]]] = (
    ("adaptive", simulation.adaptive, simulation.MEMORIES),
    ("costs unknown", simulation.adaptive_unmeasured, simulation.MEMORIES),
    ("head only", simulation.adaptive_head, ("cold", "shuffled")),
    ("tiers", simulation.tiers, ("cold", "shuffled")),
    ("UCB1", simulation.ucb1, ("cold", "shuffled")),
)


def simulate(options: Options, traces: Path) -> None:
    """Replay recorded requests, and write what came out."""
    requests = recordings(traces)
    limits = simulation.bounds(requests)
    entries = [
        _entry(f"{name}, {memory}", make, memory, requests, limits)
        for name, make, memories in SIMULATED
        for memory in memories
    ]
    arms = [*(Arm("mtp", depth) for depth in range(1, 5)), OFF]
    for arm in arms:
        outcomes = simulation.fixed(arm, requests, limits)
        entries.append(Entry(str(arm), outcomes, str(arm) in DRAWN))
    facts = {"curves": CURVES, "draft_times": DRAFT_TIMES, "clocks": simulation.CLOCKS}
    write(entries, options, "strategy-simulated", "Recorded traces, four cost curves", facts)


def _entry(
    name: str, make: Maker, memory: Memory, requests: Sequence[Recording], limits: Bounds
) -> Entry:
    return Entry(name, simulation.simulated(make, memory, requests, limits), name in DRAWN)


def measure(options: Options, workload: str | None = None) -> None:
    """Decode requests on grown models, and write what came out.

    Args:
        options: How to.
        workload: Decode those of one workload only, and print a line for each.
    """
    hidden, layers = HYBRIDS[-1]
    pair = Pair(grown_hybrid(hidden, layers)[0], grown_pair_draft())
    chosen = [one for one in recordings() if one.request < (1 if options.quick else REQUESTS)]
    chosen = [one for one in chosen if workload in (None, one.workload)]
    costs = measured_costs(pair, chosen[0].prompt)
    unit = costs.forward[1]
    print(f"plain step {1000 * unit:.1f} ms; v", _relative(costs.forward, unit))
    print("c", _relative(costs.draft, unit), flush=True)
    comparison = measured.Comparison(pair, costs)
    outcomes: dict[str, list[Outcome]] = {}
    for recording in chosen:
        found = comparison.run(recording)
        for name, outcome in found.items():
            outcomes.setdefault(name, []).append(outcome)
        _show_progress(outcomes)
    if workload is not None:
        return
    facts = {
        "model": {"hidden": hidden, "layers": layers},
        "costs": costs,
        "survival": measured.survival(comparison.timed),
        "outcomes": outcomes,
    }
    # Fixed choices that were hopeless in some requests are in the JSON only.
    whole = {name: found for name, found in outcomes.items() if len(found) == len(chosen)}
    entries = [Entry(name, found, drawn=True) for name, found in whole.items()]
    title = f"Bundled model grown to {hidden} x {layers}"
    write(entries, options, "strategy-measured", title, facts)


def _relative(times: Mapping[Key, float], unit: float) -> dict[Key, float]:
    return {key: round(seconds / unit, 3) for key, seconds in times.items()}


def _show_progress(outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    """The last outcome of each strategy that decoded the last request."""
    some = next(iter(outcomes.values()))[-1]
    last_token = {name: found[-1] for name, found in outcomes.items()}
    times = (
        f"{name} {one.time / one.plain:.3f}"
        for name, one in last_token.items()
        if (one.workload, one.request) == (some.workload, some.request)
    )
    print(f"{some.workload} {some.request}, time / plain:", *times, sep="  ", flush=True)


def main() -> None:
    """Run one of the two, print a table, and write JSON and a plot."""
    parser = argparse.ArgumentParser(description="Time over that of the best fixed choice.")
    parser.add_argument("--simulate", action="store_true", help="replay recorded traces")
    parser.add_argument(
        "--traces", type=Path, default=TRACES, help="what to replay, from benchmarks.traces"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for JSON and PNG")
    parser.add_argument("--quick", action="store_true", help="one request of each workload")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="one thread, by the processor's time: for a machine with other things to do",
    )
    parser.add_argument("--workload", choices=WORKLOADS, help="decode those of one workload only")
    given = parser.parse_args()
    options = Options(given.quick, given.output)
    if given.simulate:
        simulate(options, given.traces)
    else:
        regime.enter(1 if given.busy else regime.THREADS)
        measure(options, given.workload)


if __name__ == "__main__":
    main()
