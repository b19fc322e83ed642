"""Fakes that give a test full control over drafts, plans, observers and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, cycle
from typing import final

import mlx.core as mx

from speculate.protocols import Commit, Draft, DraftSampler, Plan, Proposer, Round, SpeculativeModel


@final
class ScriptedProposer:
    """Drafts a known sequence, wrong exactly where a test wants it.

    Args:
        text: Ids of the whole sequence, prompt included. After its end it drafts id 0.
        wrong: Called with the number of the draft, from 0. Returns the index of the token
            that is off by one, or `None` for a correct draft.
        vocab_size: Ids wrap around here.
        name: Of the proposer.

    Attributes:
        drafts: Number of drafts made.
        commits: Every commit since `begin`.
    """

    def __init__(
        self,
        text: Sequence[int],
        wrong: Callable[[int], int | None] = lambda _: None,
        *,
        vocab_size: int,
        name: str = "scripted",
    ) -> None:
        self._text = list(text)
        self._wrong = wrong
        self._vocab_size = vocab_size
        self.name: str = name
        self._position = 0
        self.drafts: int = 0
        self.commits: list[Commit] = []

    def attach(self, target: SpeculativeModel, /) -> None:
        """Accept any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position
        self.commits = []

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]
        self.commits.append(commit)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        start = self._position + 1
        draft = (self._text[start : start + limit] + [0] * limit)[:limit]
        wrong = self._wrong(self.drafts)
        self.drafts += 1
        if wrong is not None and wrong < limit:
            draft[wrong] = (draft[wrong] + 1) % self._vocab_size
        return Draft(mx.array(draft, dtype=mx.uint32))

    def settle(self) -> None:
        """Nothing to settle, since it has no cache."""


@final
class ScheduledStrategy:
    """Repeats a list of plans, and records every observed round in `rounds`.

    A plan is a proposer and a depth; a depth of 0 drafts nothing.
    """

    def __init__(self, plans: Sequence[tuple[Proposer, int]]) -> None:
        self.proposers: Sequence[Proposer] = list({id(one): one for one, _ in plans}.values())
        self.rounds: list[Round] = []
        self._plans = cycle(plans)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        proposer, depth = next(self._plans)
        return Plan(proposer, depth) if depth else Plan()

    def observe(self, round: Round, /) -> None:
        self.rounds.append(round)


@final
class RecordingObserver:
    """Records every observed round, in order, in `rounds`."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def __call__(self, round: Round, /) -> None:
        self.rounds.append(round)

    def round_of(self, token: int) -> int:
        """Index of the round that emitted token `token`, from 0; after the last, their number."""
        ends = accumulate(round.emitted for round in self.rounds)
        after = (round.index for round, end in zip(self.rounds, ends, strict=True) if token < end)
        return next(after, len(self.rounds))


@final
class ManualClock:
    """A clock that moves only by `advance`: call it for the time in seconds."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds
