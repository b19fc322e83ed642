"""Strategies on a grown bundled model, which take turns within each request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, final

import speculate as sp
from benchmarks.clock import counts_processor
from benchmarks.pair import Pair
from benchmarks.strategy.decoded import Decoding, Timed, all_proposers, fixed, in_pieces
from benchmarks.strategy.fixed_choices import ARMS, OFF, Arm, Best, fixed_times
from benchmarks.strategy.machine import Machine
from benchmarks.strategy.recording import Recording
from benchmarks.strategy.simulation import START, Outcome
from speculate.protocols import Costs, Strategy

COLD, WARM = "adaptive, cold", "adaptive, warm"

TURNS: Final = 4
"""How often each strategy decodes a request: one decoding varies by a hundredth or two."""

HOPELESS: Final = 1.3
"""What takes so much longer than the best fixed choice, by the recording, is not decoded."""


@final
class Comparison:
    """All strategies on one request after another.

    Args:
        pair: The models.
        costs: Theirs.
        turns: How often each strategy decodes a request; every other time in reverse order.
    """

    def __init__(self, pair: Pair, costs: Costs, turns: int = TURNS) -> None:
        self._pair = pair
        self._costs = costs
        # One for each turn: none may see a request twice.
        self._warm = [self._adaptive() for _ in range(turns)]
        self.timed: list[tuple[Recording, Mapping[str, Sequence[Timed]]]] = []

    def run(self, recording: Recording) -> dict[str, Outcome]:
        """Decode a request with every strategy. The fixed ones are named by their proposers."""
        arms = {"off": OFF, **promising(recording, self._costs)}
        found: dict[str, list[Timed]] = {name: [] for name in (COLD, WARM, *arms)}
        for turn in range(len(self._warm)):
            decodings = {
                name: Decoding(self._pair, recording, self._strategy(name, arms, turn))
                for name in found
            }
            for name, timed in in_pieces(decodings, reverse=turn % 2 == 1).items():
                found[name].append(timed)
        self.timed.append((recording, found))
        return dict(_outcomes(recording, found, arms))

    def _strategy(self, name: str, arms: Mapping[str, Arm], turn: int) -> Strategy:
        if name in arms:
            return fixed(self._pair, arms[name])
        return self._warm[turn] if name == WARM else self._adaptive()

    def _adaptive(self) -> Strategy:
        # Where the wall's clock says nothing the strategy goes by what was measured.
        clock: Literal["wall", "fixed"] = "fixed" if counts_processor() else "wall"
        return sp.Adaptive(*all_proposers(self._pair), clock=clock, costs=self._costs)


def promising(recording: Recording, costs: Costs) -> dict[str, Arm]:
    """For each proposer the depth that should be best, by the costs and what was recorded.

    Those that are far from the best of them are left out.
    """
    unit = costs.forward[1]
    forward = {rows: seconds / unit for rows, seconds in costs.forward.items()}
    draft = {name: seconds / unit for name, seconds in costs.draft.items()}
    machine = Machine(forward, draft={"lookup": 0.0, **draft})

    def takes(arm: Arm) -> float:
        return fixed_times(recording, machine, arm)[-1]

    names = [arm.proposer for arm in ARMS if arm.proposer and arm.depth == 1]
    best = {name: min((arm for arm in ARMS if arm.proposer == name), key=takes) for name in names}
    least = min(takes(arm) for arm in (OFF, *best.values()))
    return {f"best {name}": arm for name, arm in best.items() if takes(arm) < HOPELESS * least}


def survival(
    timed: Sequence[tuple[Recording, Mapping[str, Sequence[Timed]]]],
) -> dict[str, dict[str, list[float]]]:
    """`S_1, S_2, ...` of each proposer in each workload, from the rounds that were made.

    Args:
        timed: From a comparison.
    """
    accepted: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for recording, found in timed:
        for one in (one for name in found for one in found[name]):
            for round in one.rounds:
                if round.proposer and not round.truncated:
                    of = accepted.setdefault(recording.workload, {})
                    of.setdefault(round.proposer, []).append((round.drafted, round.accepted))
    return {
        workload: {name: _shares(counts) for name, counts in of.items()}
        for workload, of in accepted.items()
    }


def _shares(counts: Sequence[tuple[int, int]]) -> list[float]:
    deepest = max(drafted for drafted, _ in counts)
    shares = []
    for depth in range(1, deepest + 1):
        right = [accepted >= depth for drafted, accepted in counts if drafted >= depth]
        shares.append(round(sum(right) / len(right), 3))
    return shares


def _outcomes(
    recording: Recording, found: Mapping[str, Sequence[Timed]], arms: Mapping[str, Arm]
) -> Iterator[tuple[str, Outcome]]:
    whole = {name: _mean(timed, -1) for name, timed in found.items()}
    begun = min(START, len(recording.output)) - 1
    start = {name: _mean(timed, begun) for name, timed in found.items()}
    for name in found:
        outcome = Outcome(
            curve="measured",
            workload=recording.workload,
            request=recording.request,
            time=whole[name],
            start=start[name],
            plain=whole["off"],
            best=_best(arms, whole),
            best_start=_best(arms, start),
        )
        yield name, outcome


def _best(arms: Mapping[str, Arm], times: Mapping[str, float]) -> Best:
    name = min(arms, key=lambda name: times[name])
    return Best(arms[name], times[name])


def _mean(timed: Sequence[Timed], token: int) -> float:
    """Over both orders, so that a machine that changes favours nobody."""
    return sum(one.times[token] for one in timed) / len(timed)
