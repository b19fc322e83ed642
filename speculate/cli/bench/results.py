"""What came out of a benchmark, as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import final

import attrs

from speculate.cli.bench.runs import ADAPTIVE, DEPTHS, OFF, Run, drafts_of
from speculate.protocols import Round


@final
@attrs.frozen
class Forwards:
    """What the target's forwards take.

    Attributes:
        context: Tokens of text in front.
        seconds: By rows.
        relative: v(T), the same by the time of one row.
    """

    context: int
    seconds: Mapping[int, float]
    relative: Mapping[int, float]


@final
@attrs.frozen
class Choice:
    """Rounds in which the same was done.

    Attributes:
        proposer: Who drafted; `None` for nobody.
        depth: Tokens that were drafted.
        rounds: How many there were.
        seconds: Their median time.
        relative: The same by that of a round without drafts.
    """

    proposer: str | None
    depth: int
    rounds: int
    seconds: float
    relative: float


@final
@attrs.frozen
class Outcome:
    """One way of decoding, over the texts of one workload.

    Attributes:
        tokens: That were generated.
        passes: Of the target.
        draft_tokens: That were drafted.
        accepted_tokens: Those of them that were emitted.
        seconds: Time of the passes and drafts.
        spread: By how much two runs of the same differ, the slower one over the faster one,
            less 1: the most of all texts in this way or without drafts, and no less than the
            `disturbance` of the whole benchmark.
        speedup: Over decoding without drafts; `None` where that is no more than two runs of
            the same differ by.
        no_speedup: Why there is none.
    """

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
    """All of it; written as JSON field by field.

    Attributes:
        model: Name of the target.
        draft_model: Name of the draft model; `None` without one.
        machine: Device, and versions of what was used.
        tokens: Tokens to generate for each prompt, at most.
        forward: What the target's forwards take.
        survival: For each proposer, part of its deepest drafts of which the first 1, 2, ...
            tokens were all right.
        choices: What rounds took, by who drafted and how much.
        workloads: How each way of decoding did, by workload.
        same_text: Whether all ways gave the same texts.
        disturbance: By how much the two runs of a text in one way differ: the slower one over
            the faster one, less 1, in the median.
    """

    model: str
    draft_model: str | None
    machine: Mapping[str, str]
    tokens: int
    forward: Forwards
    survival: Mapping[str, Sequence[float]]
    choices: Sequence[Choice]
    workloads: Mapping[str, Mapping[str, Outcome]]
    same_text: bool
    disturbance: float


def relative(seconds: Mapping[int, float], context: int) -> Forwards:
    """Times of forwards, and v(T)."""
    return Forwards(context, seconds, {rows: time / seconds[1] for rows, time in seconds.items()})


def survival(runs: Sequence[Run]) -> dict[str, list[float]]:
    """How far the deepest drafts got, by proposer, over all texts."""
    rounds: dict[str, list[Round]] = {}
    for run in runs:
        name, _, depth = run.way.partition(" ")
        if depth == str(max(DEPTHS)):
            rounds.setdefault(name, []).extend(run.rounds)
    found = {name: drafts_of(own) for name, own in rounds.items()}
    return {
        name: [
            accepted / drafted
            for accepted, drafted in zip(
                own.accepted_per_position, own.drafted_per_position, strict=True
            )
        ]
        for name, own in found.items()
    }


def choices(runs: Sequence[Run]) -> list[Choice]:
    """What rounds took, by who drafted and how much; nobody first."""
    times: dict[tuple[str | None, int], list[float]] = {}
    for round in (round for run in runs for round in run.rounds):
        times.setdefault((round.proposer, round.drafted), []).append(round.seconds)
    plain = median(times[None, 0])
    ordered = sorted(times.items(), key=lambda item: (item[0][0] or "", item[0][1]))
    return [
        Choice(proposer, depth, len(found), median(found), median(found) / plain)
        for (proposer, depth), found in ordered
    ]


def outcomes(runs: Sequence[Run]) -> dict[str, dict[str, Outcome]]:
    """How each way of decoding did, by workload."""
    overall = disturbance(runs)
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.workload, {}).setdefault(run.way, []).append(run)
    return {
        workload: {way: _outcome(own, ways[OFF], overall) for way, own in ways.items()}
        for workload, ways in found.items()
    }


def _outcome(runs: Sequence[Run], plain: Sequence[Run], overall: float) -> Outcome:
    rounds = [round for run in runs for round in run.rounds]
    drafts, seconds = drafts_of(rounds), sum(run.seconds for run in runs)
    spread = max(overall, *_differences(runs), *_differences(plain))
    speedup = sum(run.seconds for run in plain) / seconds
    effect = max(speedup, 1 / speedup) - 1
    reason = None
    if runs is not plain and effect <= spread:
        reason = (
            f"two runs of the same differ by {spread:.0%}, and this way from decoding without "
            f"drafts by {effect:.0%}"
        )
    return Outcome(
        tokens=sum(len(run.ids) for run in runs),
        passes=len(rounds),
        draft_tokens=drafts.draft_tokens,
        accepted_tokens=drafts.accepted_tokens,
        seconds=seconds,
        spread=spread,
        speedup=None if reason else speedup,
        no_speedup=reason,
    )


def same_text(runs: Sequence[Run]) -> bool:
    """Whether each prompt got the same text every time."""
    texts: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for run in runs:
        texts.setdefault((run.workload, run.prompt), set()).add(tuple(run.ids))
    return all(len(found) == 1 for found in texts.values())


def disturbance(runs: Sequence[Run]) -> float:
    """By how much the two runs of a text in one way differ, in the median."""
    return median(_differences(runs))


def _differences(runs: Sequence[Run]) -> list[float]:
    """By how much the two runs of a text in one way differ, for each text and way."""
    times: dict[tuple[str, int, str], list[float]] = {}
    for run in runs:
        times.setdefault((run.workload, run.prompt, run.way), []).append(run.seconds)
    return [max(found) / min(found) - 1 for found in times.values()]


def best_fixed(outcomes: Mapping[str, Outcome]) -> str:
    """The way that did best of those that do not adapt, plain decoding included.

    Those whose speedup is not known are left out.
    """
    known = {way: own.speedup for way, own in outcomes.items() if own.speedup is not None}
    return max((way for way in known if way != ADAPTIVE), key=lambda way: known[way])
