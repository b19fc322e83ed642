"""The same texts, decoded in every way there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, final

import attrs

from speculate.cli.bench.estimate import Estimate
from speculate.cli.models import strategy_for
from speculate.cli.progress import Stage
from speculate.decoding.decoder import Decoder
from speculate.decoding.stats import DraftStats
from speculate.protocols import Round, SpeculativeModel, Strategy

DEPTHS: Final = (1, 3, 6)
"""Fixed depths that are tried."""

WARM_UP: Final = 16
"""Tokens that each way decodes beforehand, twice: they do not count, and tell how long it takes."""

OFF: Final = "off"
ADAPTIVE: Final = "adaptive"

Ways = Mapping[str, Callable[[], Strategy]]
"""Names of the ways, and what makes the strategy of each."""


@final
@attrs.frozen
class Run:
    """One text, decoded in one way.

    Attributes:
        workload: What kind of text it is.
        prompt: Which of that kind.
        way: Name of the way.
        ids: The tokens.
        rounds: What they took.
    """

    workload: str
    prompt: int
    way: str
    ids: Sequence[int]
    rounds: Sequence[Round]

    @property
    def seconds(self) -> float:
        """Time of its rounds."""
        return sum(round.seconds for round in self.rounds)


def ways_of(model: SpeculativeModel, draft: SpeculativeModel | None) -> Ways:
    """Without drafts, with each proposer at each depth, and with whatever pays."""
    there = {"draft": draft is not None, "mtp": model.head is not None, "lookup": True}
    ways: dict[str, Callable[[], Strategy]] = {OFF: lambda: strategy_for(model, [OFF], None, draft)}
    for name in (name for name, found in there.items() if found):
        for depth in DEPTHS:
            ways[f"{name} {depth}"] = _fixed(model, name, depth, draft)
    ways[ADAPTIVE] = lambda: strategy_for(model, None, None, draft)
    return ways


def _fixed(
    model: SpeculativeModel, name: str, depth: int, draft: SpeculativeModel | None
) -> Callable[[], Strategy]:
    return lambda: strategy_for(model, [name], depth, draft)


def run_all(
    model: SpeculativeModel,
    ways: Ways,
    workloads: Mapping[str, Sequence[Sequence[int]]],
    tokens: int,
    stop_tokens: Collection[int],
    stage: Stage,
    estimate: Estimate,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Run]:
    """Decode every text in every way, twice.

    The ways go forth and back (A B C C B A): what changes steadily meanwhile, as a machine
    that gets warm, counts for all of them alike.

    Args:
        model: The target.
        ways: See `ways_of`.
        workloads: Prompts by kind, as ids.
        tokens: Tokens to generate for each, at most.
        stop_tokens: Ids that end a text.
        stage: Told of the warm-up and of each prompt.
        estimate: Told what short texts took, and then what each text did.
        clock: Tells the time, in seconds.
    """
    runs = []
    first = next(iter(workloads.values()))[0]
    forth_and_back = [*ways, *reversed([*ways])]
    with stage("warm-up", len(forth_and_back)) as done:
        for way in forth_and_back:
            began = clock()
            ids, rounds = _run(model, ways[way], first, min(WARM_UP, tokens), stop_tokens)
            estimate.pilot(way, len(ids), clock() - began, sum(each.seconds for each in rounds))
            done()
    for workload, prompts in workloads.items():
        for index, prompt in enumerate(prompts):
            name = f"{workload} {index + 1} of {len(prompts)}"
            with stage(name, len(forth_and_back)) as done:
                for way in forth_and_back:
                    began = clock()
                    ids, rounds = _run(model, ways[way], prompt, tokens, stop_tokens)
                    estimate.done(way, clock() - began)
                    runs.append(Run(workload, index, way, ids, rounds))
                    done()
    return runs


def _run(
    model: SpeculativeModel,
    make: Callable[[], Strategy],
    prompt: Sequence[int],
    tokens: int,
    stop_tokens: Collection[int],
) -> tuple[list[int], list[Round]]:
    rounds: list[Round] = []
    decoder = Decoder(model, make(), observer=rounds.append)
    ids = [token.id for token in decoder.generate(prompt, tokens, stop_tokens=stop_tokens)]
    return ids, rounds


def drafts_of(rounds: Sequence[Round]) -> DraftStats:
    """Counters of some rounds' drafts."""
    found = DraftStats()
    for round in rounds:
        if round.proposer is not None:
            found = found.plus(round.drafted, round.accepted, round.seconds)
    return found
