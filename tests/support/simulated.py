"""A made-up world for strategies: texts that are guessed by chance, and a clock that only counts.

No arrays and no waiting: what a round takes is looked up in a table, and what a draft is worth
is drawn beforehand for every position, regardless of the proposer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, final

import mlx.core as mx

from speculate import SpeculativeModel
from speculate.protocols import (
    Commit,
    Costs,
    Draft,
    DraftSampler,
    DraftScore,
    Forecast,
    Plan,
    Proposer,
    Round,
    Strategy,
)
from speculate.strategies.round_times import interpolated

PLAIN: Final = 0.02
"""Seconds of a plain round."""

FLAT: Final = {1: 1.0, 3: 1.12, 5: 1.48, 9: 2.4}
"""Time of a forward over so many rows, in plain rounds, on a machine where drafts pay."""

STEEP: Final = {1: 1.0, 2: 1.83, 4: 3.26, 8: 6.12}
"""The same where they do not, unless nearly all are right."""


class Guesser:
    """A proposer that exists only by what its drafts are worth.

    Args:
        name: Its name.
        step: Time of one drafted token, in plain rounds.
        right: Probability that a draft is right if all before it are.
        longest: Most tokens that it drafts.

    The three may be changed in the middle of a text.
    """

    def __init__(self, name: str, step: float, right: float, longest: int = 99) -> None:
        self._name = name
        self.step = step
        self.right = right
        self.longest = longest

    @property
    def name(self) -> str:
        return self._name

    def attach(self, target: SpeculativeModel, /) -> None:
        """Needs no target."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        """Remembers nothing."""

    def position(self) -> int:
        return 0

    def commit(self, commit: Commit, /) -> None:
        """Remembers nothing."""

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        raise AssertionError("a strategy never drafts itself")

    def settle(self) -> None:
        """Has no cache."""


@final
class Finder(Guesser):
    """A lookup: drafts cost nothing, and it knows what they would have been worth.

    Args:
        right: See `Guesser`.
        kind: Of all its drafts.

    Attributes:
        finds: Whether it has a draft, by the place in the text.
    """

    def __init__(self, right: float, kind: int = 3) -> None:
        super().__init__("lookup", 0.0, right, longest=16)
        self._kind = kind
        self._open: list[tuple[int, int]] = []  # where a draft began, and how long it is right
        self._found: list[DraftScore] = []
        self._place = 0
        self.finds: Callable[[int], bool] = lambda place: True

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        found = self.finds(self._place)
        return Forecast(self._kind, self.longest) if found else Forecast(0, 0)

    def scores(self) -> Sequence[DraftScore]:
        found, self._found = self._found, []
        return found

    def follow(self, world: World, emitted: int) -> None:
        """The text goes on by so many tokens."""
        for place in range(self._place, self._place + emitted):
            if self.finds(place):
                self._open.append((place, world.worth(self, place)))
            still = []
            for start, worth in self._open:
                position = place - start
                right = position < worth
                self._found.append(DraftScore(self._kind, position, 1, int(right)))
                if right and position + 1 < self.longest:
                    still.append((start, worth))
            self._open = still
        self._place += emitted


@final
class Sleeper(Guesser):
    """Takes the text in when it is asked for a draft, or much of it waits.

    Args:
        name: Its name.
        step: See `Guesser`.
        right: See `Guesser`.
        row: Time in which it takes in a token that it missed, in steps of its own.
        missed: Length of its backlog, in tokens.
    """

    def __init__(self, name: str, step: float, right: float, row: float, missed: int = 0) -> None:
        super().__init__(name, step, right)
        self.row = row
        self.missed = missed

    def backlog(self) -> int:
        return self.missed if self.missed > 12 else 0

    def catch_up(self) -> float:
        """Take everything in: the time of it, in plain rounds."""
        rows, self.missed = self.backlog(), 0
        return rows * self.row * self.step

    def follow(self, emitted: int) -> float:
        """Others went on with the text: the time in which it takes in what waits too long."""
        self.missed += emitted
        return self.catch_up() if self.missed >= 1024 else 0.0


@final
class World:
    """A text that is decoded round by round, as far as a strategy can tell.

    Args:
        proposers: Who drafts.
        forward: Rows of a forward -> its time, in plain rounds.
        noise: Standard deviation of the times, relative.
        seed: Of what is drawn.

    Attributes:
        forward: May be changed in the middle of a text.
        pace: Seconds of a plain round; may be changed as well.
        launches: Whether a plain round is followed by one that was planned before it was read.
        disturbed: Round of this world, from 0 on -> how many times as long it takes.
        rounds: That were made.
        time: That they took, in seconds.
    """

    def __init__(
        self,
        *proposers: Guesser,
        forward: dict[int, float] = FLAT,
        noise: float = 0.02,
        seed: int = 0,
    ) -> None:
        self.proposers = {proposer.name: proposer for proposer in proposers}
        self.forward = forward
        self.pace = PLAIN
        self.launches = False
        self.disturbed: dict[int, float] = {}
        self.rounds: list[Round] = []
        self.time = 0.0
        self._place = 0
        self._noise = noise
        self._seed = seed
        self._dice = random.Random(seed)

    def costs(self) -> Costs:
        """What an exact measurement would give."""
        forward = {rows: interpolated(self.forward, rows) * self.pace for rows in (1, 2, 3, 5, 9)}
        draft = {name: one.step * self.pace for name, one in self.proposers.items() if one.step}
        return Costs(256, forward, draft)

    def worth(self, proposer: Guesser, place: int) -> int:
        """Leading drafts that are right at a place: the same whenever it is asked."""
        dice = random.Random(f"{self._seed} {proposer.name} {place}")
        worth = 0
        while worth < 16 and dice.random() < proposer.right:
            worth += 1
        return worth

    def cost(self, proposer: Guesser | None, drafted: int) -> float:
        """Time of a round, in plain rounds."""
        step = 0.0 if proposer is None else proposer.step
        return interpolated(self.forward, drafted + 1) + step * drafted

    def tokens(self, proposer: Guesser | None, drafted: int) -> float:
        """Tokens that a round gives on average."""
        right = 0.0 if proposer is None else proposer.right
        return sum(right**position for position in range(drafted + 1))

    def best(self) -> float:
        """Most tokens per plain round that any proposer and depth gives."""
        rates = [
            self.tokens(one, depth) / self.cost(one, depth)
            for one in self.proposers.values()
            for depth in range(min(12, one.longest) + 1)
        ]
        return max(rates)

    def share(self, rounds: Sequence[Round]) -> float:
        """How fast some rounds are on average, as a part of the best there is."""
        who = [self.proposers.get(round.proposer or "") for round in rounds]
        pairs = [(one, round.drafted) for one, round in zip(who, rounds, strict=True)]
        tokens = sum(self.tokens(*pair) for pair in pairs)
        return tokens / sum(self.cost(*pair) for pair in pairs) / self.best()

    def run(
        self, strategy: Strategy, tokens: int, *, limit: bool = False, stops: bool = False
    ) -> list[Round]:
        """Go on with the text.

        Args:
            strategy: Decides.
            tokens: To emit, and perhaps a few more.
            limit: Not one more, and the strategy knows.
            stops: The last token is a stop token: the block is cut there, unforeseen.

        Returns:
            The rounds.
        """
        first, last = len(self.rounds), self._place + tokens
        ahead: Plan | None = None
        while self._place < last:
            left = last - self._place
            plan = ahead or strategy.plan(left if limit else None)
            plainly = self.launches and not plan.depth
            ahead = strategy.plan(left - 1 if limit else None) if plainly else None
            self.rounds.append(self._round(plan.proposer, plan.depth, left, limit, limit or stops))
            strategy.observe(self.rounds[-1])
        return self.rounds[first:]

    def _catching_up(self, drafts: Guesser | None, emitted: int) -> float:
        """Time in which sleepers take in what they missed."""
        sleepers = (one for one in self.proposers.values() if isinstance(one, Sleeper))
        return sum(one.catch_up() if one is drafts else one.follow(emitted) for one in sleepers)

    def _round(
        self, proposer: Proposer | None, planned: int, left: int, limit: bool, ends: bool
    ) -> Round:
        guesser = None if proposer is None else self.proposers[proposer.name]
        drafted = 0 if guesser is None else min(planned, guesser.longest)
        if isinstance(guesser, Finder) and not guesser.forecast().length:
            drafted = 0
        if limit:
            drafted = min(drafted, left - 1)
        right = 0 if guesser is None else min(self.worth(guesser, self._place), drafted)
        emitted = min(right + 1, left) if ends else right + 1
        index, context = len(self.rounds), self._place
        steps = self.cost(guesser, drafted) + self._catching_up(
            guesser if drafted else None, emitted
        )
        seconds = steps * self.pace * self.disturbed.get(index, 1.0)
        self.time += seconds
        self._place += emitted
        for one in self.proposers.values():
            if isinstance(one, Finder):
                one.follow(self, emitted)
        return Round(
            index=index,
            proposer=guesser.name if guesser is not None and drafted else None,
            planned=planned,
            drafted=drafted,
            accepted=min(right, emitted),
            emitted=emitted,
            truncated=ends and emitted == left,
            seconds=seconds * max(self._dice.gauss(1.0, self._noise), 0.5),
            context=context,
            planned_proposer=None if guesser is None or (limit and left == 1) else guesser.name,
        )
