"""The same texts, decoded in every way there is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, final

import attrs

from speculate.cli.models import strategy_for
from speculate.cli.progress import Stage
from speculate.decoding.decoder import Decoder
from speculate.decoding.stats import DraftStats
from speculate.protocols import Round, SpeculativeModel, Strategy

DEPTHS: Final = (1, 3, 6)
"""Fixed depths that are tried."""

WARM_UP: Final = 8
"""Tokens that each way decodes beforehand, and that do not count."""

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
    """
    runs = []
    first = next(iter(workloads.values()))[0]
    with stage("warm-up", len(ways)) as done:
        for make in ways.values():
            _run(model, make, first, min(WARM_UP, tokens), stop_tokens)
            done()
    for workload, prompts in workloads.items():
        for index, prompt in enumerate(prompts):
            with stage(f"{workload} {index + 1} of {len(prompts)}", 2 * len(ways)) as done:
                for way in [*ways, *reversed([*ways])]:
                    ids, rounds = _run(model, ways[way], prompt, tokens, stop_tokens)
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
