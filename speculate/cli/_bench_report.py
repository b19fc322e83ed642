"""The results of `speculate bench`: as numbers, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, final

import attrs

from speculate.cli._bench_runs import ADAPTIVE, DEPTHS, OFF, BenchRun
from speculate.cli._console import table_of
from speculate.cli._models import share_per_position
from speculate.decoding.stats import Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = {"mtp": "#0072b2", "draft": "#d55e00", "lookup": "#009e73"}
"""Colour of each proposer, distinct for colour-blind readers and in print."""

FILLS: Final = ("#56b4e9", "#e69f00", "#cc79a7", "#999999")
"""Colours of the workloads."""


@final
@attrs.frozen
class ForwardTimes:
    """Times of target forwards after `context` tokens, by width; `relative` to one token: v(T)."""

    context: int
    seconds: Mapping[int, float]
    relative: Mapping[int, float]


@final
@attrs.frozen
class RoundTime:
    """Median time of rounds by proposer and depth; `relative` to those without a draft (`None`)."""

    proposer: str | None
    depth: int
    rounds: int
    seconds: float
    relative: float


@final
@attrs.frozen
class SettingResult:
    """All runs of one workload with one setting. docs/telemetry.md describes the fields."""

    tokens: int
    passes: int
    draft_tokens: int
    accepted_tokens: int
    seconds: float
    spread: float
    speedup: float | None
    no_speedup: str | None = None


@final
@attrs.frozen
class Results:
    """Everything that was measured. docs/telemetry.md describes the fields, as `bench.json`."""

    model: str
    draft_model: str | None
    machine: Mapping[str, str]
    tokens: int
    forward: ForwardTimes
    survival: Mapping[str, Sequence[float]]
    choices: Sequence[RoundTime]
    workloads: Mapping[str, Mapping[str, SettingResult]]
    same_text: bool
    disturbance: float


def relative_times(seconds: Mapping[int, float], context: int) -> ForwardTimes:
    """Times of forwards, with v(T)."""
    relative = {rows: time / seconds[1] for rows, time in seconds.items()}
    return ForwardTimes(context, seconds, relative)


def survival(runs: Sequence[BenchRun]) -> dict[str, list[float]]:
    """Share of the deepest drafts accepted up to each position, by proposer."""
    deepest: dict[str, list[BenchRun]] = {}
    for run in runs:
        name, _, depth = run.setting.partition(" ")
        if depth == str(max(DEPTHS)):
            deepest.setdefault(name, []).append(run)
    return {name: share_per_position(_counted(own).total) for name, own in deepest.items()}


def _counted(runs: Sequence[BenchRun]) -> Stats:
    stats = Stats()
    for round in (round for run in runs for round in run.rounds):
        stats.count(round)
    return stats


def round_times(runs: Sequence[BenchRun]) -> list[RoundTime]:
    """Median times of rounds by proposer and depth, rounds without a draft first."""
    times: dict[tuple[str | None, int], list[float]] = {}
    for round in (round for run in runs for round in run.rounds):
        times.setdefault((round.proposer, round.drafted), []).append(round.seconds)
    baseline = median(times[None, 0])
    ordered = sorted(times.items(), key=lambda item: (item[0][0] or "", item[0][1]))
    return [
        RoundTime(proposer, depth, len(found), median(found), median(found) / baseline)
        for (proposer, depth), found in ordered
    ]


def results_by_workload(runs: Sequence[BenchRun]) -> dict[str, dict[str, SettingResult]]:
    """Results by workload and setting."""
    overall = disturbance(runs)
    found: dict[str, dict[str, list[BenchRun]]] = {}
    for run in runs:
        found.setdefault(run.workload, {}).setdefault(run.setting, []).append(run)
    return {
        workload: {name: _result(own, settings[OFF], overall) for name, own in settings.items()}
        for workload, settings in found.items()
    }


def _result(runs: Sequence[BenchRun], plain: Sequence[BenchRun], overall: float) -> SettingResult:
    stats, seconds = _counted(runs), sum(run.seconds for run in runs)
    # The largest difference between two runs of a prompt, with this setting or without drafts.
    spread = max(overall, *_repeat_differences(runs), *_repeat_differences(plain))
    speedup = sum(run.seconds for run in plain) / seconds
    effect = max(speedup, 1 / speedup) - 1
    known = runs is plain or effect > spread
    gain = f"this setting from decoding without drafts by {effect:.0%}"
    unknown = f"repeated runs differ by {spread:.0%}, and {gain}"
    return SettingResult(
        tokens=sum(len(run.ids) for run in runs),
        passes=stats.rounds,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        seconds=seconds,
        spread=spread,
        speedup=speedup if known else None,
        no_speedup=None if known else unknown,
    )


def same_text(runs: Sequence[BenchRun]) -> bool:
    """Whether each prompt got the same tokens in every run."""
    last = {(run.workload, run.prompt): run.ids for run in runs}
    return all(run.ids == last[run.workload, run.prompt] for run in runs)


def disturbance(runs: Sequence[BenchRun]) -> float:
    """Median difference between two runs of the same prompt and setting."""
    return median(_repeat_differences(runs))


def _repeat_differences(runs: Sequence[BenchRun]) -> list[float]:
    """Slower / faster - 1 of the two runs of each prompt and setting."""
    times: dict[tuple[str, int, str], list[float]] = {}
    for run in runs:
        times.setdefault((run.workload, run.prompt, run.setting), []).append(run.seconds)
    return [max(found) / min(found) - 1 for found in times.values()]


def best_fixed(results: Mapping[str, SettingResult]) -> str:
    """The fastest setting that does not adapt, of those whose speedup is known."""
    known = {name: own.speedup for name, own in results.items() if own.speedup is not None}
    return max((name for name in known if name != ADAPTIVE), key=lambda name: known[name])


def show(results: Results) -> None:
    """Print the results as tables."""
    from rich.console import Console

    console, forward = Console(highlight=False), results.forward
    table = table_of(f"rows after {forward.context} tokens", *map(str, forward.seconds))
    table.add_row("milliseconds", *(f"{time * 1e3:.3g}" for time in forward.seconds.values()))
    table.add_row("v(T)", *(f"{v:.2f}" for v in forward.relative.values()))
    console.print(table)
    console.print()
    table = table_of("speedup", *results.workloads, "tokens/pass", "accepted")
    for name in next(iter(results.workloads.values())):
        found = [settings[name] for settings in results.workloads.values()]
        each = sum(own.tokens for own in found) / sum(own.passes for own in found)
        drafted = sum(own.draft_tokens for own in found)
        accepted = f"{sum(own.accepted_tokens for own in found)} of {drafted}" if drafted else ""
        table.add_row(name, *map(speedup_text, found), f"{each:.2f}", accepted)
    console.print(table)
    console.print()
    for line in summary_lines(results):
        console.print(line, markup=False, soft_wrap=True)


def summary_lines(results: Results) -> Iterator[str]:
    """The lines after the tables."""
    for workload, settings in results.workloads.items():
        best = best_fixed(settings)
        fixed, adaptive = speedup_text(settings[best]), speedup_text(settings[ADAPTIVE])
        yield f"{workload}: best fixed setting {best}, {fixed}; {ADAPTIVE} {adaptive}"
        if unknown := [name for name, own in settings.items() if own.speedup is None]:
            spread = max(settings[name].spread for name in unknown)
            yield (
                f"{workload}: no speedup is given for {', '.join(unknown)}: repeated runs differ "
                f"by up to {spread:.0%}, more than these settings gain or lose"
            )
    for name, shares in results.survival.items():
        found = " ".join(f"{share:.0%}" for share in shares)
        yield f"{name}: drafts accepted up to each position {found or 'none, nothing was drafted'}"
    yield f"median difference between repeated runs: {results.disturbance:.0%}"
    if results.same_text:
        yield "All settings gave the same texts."
    else:
        yield (
            "The texts DIFFER. On a GPU, several rows may round differently from one where the "
            "top two tokens are nearly tied; on a CPU this is a bug: please report it."
        )


def speedup_text(result: SettingResult) -> str:
    """The speedup, or `?` where it may be noise."""
    return "?" if result.speedup is None else f"{result.speedup:.2f}"


def draw(results: Results, path: Path) -> None:
    """Draw the results into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    (forward, survival), (rounds, speedup) = figure.subplots(2, 2)
    _draw_lines(forward, {"measured": results.forward.relative})
    widths = list(results.forward.relative)
    forward.plot(widths, widths, ":", color="black", linewidth=1, label="one row at a time")
    forward.set(title=f"Forward of T rows after {results.forward.context} tokens")
    forward.set(xlabel="T, rows", ylabel="v(T), time relative to one row")

    _draw_lines(survival, {name: dict(enumerate(own, 1)) for name, own in results.survival.items()})
    survival.set(title="Drafts accepted up to a position", ylim=(0, 1.02))
    survival.set(xlabel="position in the draft", ylabel="share of the drafts")

    times: dict[str, dict[int, float]] = {}
    for choice in results.choices:
        # The median of fewer rounds says nothing.
        if choice.proposer is not None and choice.depth and choice.rounds >= 3:
            times.setdefault(choice.proposer, {})[choice.depth] = choice.relative
    _draw_lines(rounds, times)
    rounds.axhline(1, color="black", linewidth=1, linestyle=":", label="no draft")
    rounds.set(title="Time of a round, by proposer")
    rounds.set(xlabel="tokens drafted", ylabel="relative to a round without drafts")

    _draw_speedup(speedup, results.workloads)
    for panel in (forward, survival, rounds, speedup):
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
        panel.set_axisbelow(True)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False)
    drafts = f", draft model {results.draft_model}" if results.draft_model else ""
    figure.suptitle(f"{results.model}{drafts} on {results.machine['device']}")
    figure.savefig(path, dpi=120, format="png")


def _draw_lines(panel: Axes, lines: Mapping[str, Mapping[int, float]]) -> None:
    for name, points in lines.items():
        colour = COLOURS.get(name, "#777777")
        panel.plot(list(points), list(points.values()), "o-", color=colour, label=name)


def _draw_speedup(panel: Axes, workloads: Mapping[str, Mapping[str, SettingResult]]) -> None:
    names = list(next(iter(workloads.values())))
    width = 0.8 / len(workloads)
    for index, (workload, settings) in enumerate(workloads.items()):
        places = [place + (index + 0.5) * width - 0.4 for place in range(len(names))]
        speedups = [settings[name].speedup for name in names]
        heights = [nan if speedup is None else speedup for speedup in speedups]
        panel.bar(places, heights, width, color=FILLS[index % len(FILLS)], label=workload)
    panel.axhline(1, color="black", linewidth=1, linestyle=":")
    panel.set(title="Speedup over decoding without drafts, if known", ylabel="speedup")
    panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
