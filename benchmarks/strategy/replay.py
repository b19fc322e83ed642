"""Decodes a recorded request as a `Decoder` would, with a machine's times and without arrays.

The text depends neither on who drafts nor on how much. So a recording holds what every
choice would have given at every place, and what other choices would have taken is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs
import mlx.core as mx

import speculate as sp
from benchmarks.strategy.machine import Machine
from benchmarks.strategy.recording import Recording, committed
from speculate import SpeculativeModel
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    Plan,
    Round,
    Strategy,
    SupportsCosts,
    SupportsFailover,
    Verdict,
)


@final
class Recorded:
    """Stands for a proposer whose drafts are in the recording.

    Args:
        name: In the recording.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for no model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        """Has no text."""

    def position(self) -> int:
        return 0

    def commit(self, commit: Commit, /) -> None:
        """Has no text."""

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        raise NotImplementedError("the replay knows what would have been drafted")

    def settle(self) -> None:
        """Has no cache."""


@final
class Replay:
    """One request, in progress. Its first token was emitted with the prompt.

    Args:
        recording: The request.
        strategy: Who decides. Of its proposers, lookups are real ones.
        machine: What rounds take.
    """

    def __init__(self, recording: Recording, strategy: Strategy, machine: Machine) -> None:
        self._recording = recording
        self._strategy = strategy
        self._machine = machine
        self._lookups = [p for p in strategy.proposers if isinstance(p, sp.PromptLookup)]
        self._place = 0
        self._rounds = 0
        self._ahead: Plan | None = None
        self.times = [0.0]

    def run(self) -> list[float]:
        """Time at which each token of the output was there, in plain steps."""
        if isinstance(self._strategy, SupportsFailover):
            self._strategy.begin()
        for lookup in self._lookups:
            lookup.begin(0)
            lookup.commit(committed(self._recording.prompt, None))
        # Costs it was given: it never has any measured.
        if isinstance(self._strategy, SupportsCosts):
            self._strategy.needs_costs(None, len(self._recording.prompt), self._remaining())
        while self._remaining() > 0:
            self._round()
        return self.times

    def _remaining(self) -> int:
        return len(self._recording.output) - 1 - self._place

    def _round(self) -> None:
        plan = self._take()
        asked = None if plan.proposer is None else plan.proposer.name
        drafted = self._drafted(asked, plan.depth)
        name = asked if drafted else None
        if not drafted and self._remaining() > 1:
            # The decoder launches the next step before it reads this one, so that it asks
            # for the next plan before anyone was told of this round.
            self._ahead = self._strategy.plan(self._remaining() - 1)
        right = min(drafted, self._recording.right[name][self._place]) if name else 0
        time = self._machine.time(name, drafted)
        self.times += [self.times[-1] + time] * (right + 1)
        self._commit(Verdict(name, drafted, right) if name else None, right)
        self._strategy.observe(
            Round(
                index=self._rounds,
                proposer=name,
                planned=plan.depth,
                drafted=drafted,
                accepted=right,
                emitted=right + 1,
                truncated=not self._remaining(),
                seconds=self._machine.shown(time),
                context=len(self._recording.prompt) + self._place - right,
                predicted_speedup=plan.predicted_speedup,
                baseline_seconds=plan.baseline_seconds,
                planned_proposer=asked,
            )
        )
        self._rounds += 1

    def _take(self) -> Plan:
        """The plan of this round. Where no draft fits nobody is asked."""
        plan, self._ahead = self._ahead or self._strategy.plan(self._remaining()), None
        fits = min(plan.depth, self._remaining() - 1) > 0
        return plan if fits else attrs.evolve(plan, proposer=None)

    def _drafted(self, asked: str | None, depth: int) -> int:
        """Tokens that are drafted here."""
        if asked is None:
            return 0
        return min(depth, self._recording.length[asked][self._place], self._remaining() - 1)

    def _commit(self, verdict: Verdict | None, right: int) -> None:
        start, self._place = self._place, self._place + right + 1
        ids = self._recording.output[start : self._place]
        launched = self._ahead is not None and not self._ahead.depth
        last_token = None if launched else self._recording.output[self._place]
        for lookup in self._lookups:
            lookup.commit(committed(ids, last_token, verdict))
