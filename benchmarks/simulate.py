"""Strategies on recorded acceptance: what each would take, on machines of several kinds.

The text never depends on who drafts, so that a trace holds what every choice would have
given at every place, and the best fixed choice in hindsight is exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.proposers.prompt_lookup import PromptLookup
from speculate.strategies.timing import interpolated
from speculate.protocols import (
    Choose,
    Commit,
    Draft,
    Foresees,
    Hindsight,
    Outlook,
    Plan,
    Proposer,
    Round,
    SpeculativeModel,
    Strategy,
)

CURVES: Final[Mapping[str, Mapping[int, float]]] = {
    "flat": {1: 1.0, 2: 1.0, 9: 1.0},
    "1/1.12/1.48/2.25": {1: 1.0, 3: 1.12, 5: 1.48, 8: 2.25},
    "1.03/1.47/2.69": {1: 1.0, 2: 1.03, 4: 1.47, 8: 2.69},
    "1.83/3.26/6.12": {1: 1.0, 2: 1.83, 4: 3.26, 8: 6.12},
}
"""Published times of a forward over so many rows, in forwards over one."""

DRAFT_COSTS: Final[Mapping[str, float]] = {"mtp": 0.08, "draft": 0.15, "lookup": 0.0}

DEEPEST: Final = 12
"""Most drafts of a fixed choice that is compared."""


class Traced:
    """Stands for a proposer of a trace. The simulator knows what it would have drafted."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def attach(self, target: SpeculativeModel, /) -> None:
        """Never called."""

    def begin(self, position: int, /) -> None:
        """Never called."""

    def position(self) -> int:
        return 0

    def commit(self, commit: Commit, /) -> None:
        """Nothing to keep."""

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        raise NotImplementedError("a trace is replayed without arrays")

    def settle(self) -> None:
        """Nothing to end."""


@final
@attrs.frozen
class Seen:
    kind: int
    position: int
    compared: int
    right: int


@final
class TracedLookup(Traced):
    def __init__(self, trace) -> None:
        super().__init__("lookup")
        self.t = trace
        self.place = 0
        self.open: list[tuple[int,int]] = []
        self.events = []

    def follow(self, ids) -> None:
        for _ in ids:
            e = self.place
            if self.t.kinds[e]:
                self.open.append((e, self.t.kinds[e]))
            self.place += 1
            still = []
            for start, kind in self.open:
                j = self.place - start - 1   # index of draft compared now
                right = self.t.right["lookup"][start] > j
                self.events.append(Seen(kind, j, 1, int(right)))
                if right and j + 1 < DEEPEST: still.append((start, kind))
            self.open = still

    def outlook(self):
        if self.place >= len(self.t.kinds): return Outlook(0, 0)
        return Outlook(self.t.kinds[self.place], self.t.length["lookup"][self.place])

    def hindsight(self):
        e, self.events = self.events, []
        return e

@final
@attrs.frozen
class Trace:
    """One request, and how many drafts would have been right at each place.

    Attributes:
        workload: Its name.
        prompt: Ids.
        output: Ids.
        right: Proposer -> for each place, leading drafts that are right; at place `i` the
            newest token is `output[i]`.
        length: Proposer -> most tokens that it drafts at each place.
    """

    workload: str
    prompt: list[int]
    output: list[int]
    right: dict[str, list[int]]
    length: dict[str, list[int]]
    kinds: list[int]
    conf: dict = {}


def with_lookup(workload, prompt, output):
    """What `PromptLookup` drafts right at each place, and how long its drafts are there."""
    def committed(ids, newest):
        nothing = mx.zeros((0,))
        return Commit(nothing, nothing, ids=list(ids), newest=newest)
    lookup = PromptLookup()
    lookup.begin(0)
    lookup.commit(committed(prompt, output[0]))
    rights, lengths, kinds = [], [], []
    for place in range(len(output) - 1):
        draft = lookup.propose(mx.array([output[place]]), DEEPEST, _never).tokens.tolist()
        right = 0
        for guess, token in zip(draft, output[place + 1 :], strict=False):
            if guess != token:
                break
            right += 1
        rights.append(right)
        lengths.append(len(draft))
        kinds.append(lookup.outlook().kind if draft else 0)
        lookup.commit(committed([output[place]], output[place + 1]))
    return rights, lengths, kinds


def _never(logits: mx.array, index: int, /) -> object:
    raise NotImplementedError


@final
class Machine:
    """Times of rounds, with some noise and an interruption now and then."""

    def __init__(self, curve: Mapping[int, float], seed: int, noise: float = 0.03) -> None:
        self._rows = [0.0] + [interpolated(curve, rows) for rows in range(1, DEEPEST + 2)]
        self._random = random.Random(seed)
        self._noise = noise

    def cost(self, name: str | None, drafted: int) -> float:
        """Expected time of a round, in plain steps."""
        return self._rows[drafted + 1] + (DRAFT_COSTS[name] * drafted if name else 0.0)

    def measured(self, cost: float) -> float:
        """A time that a clock may have shown."""
        disturbed = 8.0 if self._random.random() < 0.004 else 1.0
        return 0.02 * cost * disturbed * self._random.lognormvariate(0.0, self._noise)


def replay(trace: Trace, strategy: Strategy, machine: Machine) -> list[float]:
    """Time at which each token of the output was there, in plain steps. No synchronisation."""
    lookups = [proposer for proposer in strategy.proposers if isinstance(proposer, TracedLookup)]
    for lookup in lookups:
        lookup.t, lookup.place, lookup.open = trace, 0, []
    now, place, index = 0.0, 0, 0
    times: list[float] = []
    last = len(trace.output) - 1
    while place < last:
        plan = strategy.plan(last - place)
        name = None if plan.proposer is None else plan.proposer.name
        drafted = right = 0
        if name is not None:
            drafted = min(plan.depth, trace.length[name][place], last - place - 1)
            right = min(drafted, trace.right[name][place])
        emitted = right + 1
        cost = machine.cost(name if drafted else None, drafted)
        now += cost
        times += [now] * emitted
        ids = trace.output[place : place + emitted]
        place += emitted
        for lookup in lookups:
            lookup.follow(ids)
        strategy.observe(
            Round(
                index, name if drafted else None, plan.depth, drafted, right, emitted,
                place >= last, machine.measured(cost), place,
                trace.conf[name][place - emitted][:drafted] if name in trace.conf and drafted else (),
            )
        )
        index += 1
    return times
