"""A strategy that gives every fixed choice some rounds in turn, all in one text.

Behind a long prompt this takes the prompt in once, and not once for each choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import attrs

from benchmarks.turns import in_turns
from speculate.protocols import Plan, Proposer, Round

ROUNDS: Final = 6
"""That a choice gets in one go. The first is left out: its proposer may have to catch up."""


@final
@attrs.frozen
class Choice:
    """Who drafts, and how much; nobody at depth 0."""

    proposer: Proposer | None
    depth: int

    def plan(self) -> Plan:
        return Plan(self.proposer, self.depth) if self.proposer and self.depth else Plan()


@final
class Rotation:
    """Every choice in turn, forth and back.

    Args:
        choices: By name.
        turns: How often each comes.

    Attributes:
        rounds: What each choice did, without the first round of each turn.
    """

    def __init__(self, choices: Mapping[str, Choice], turns: int) -> None:
        self._choices = choices
        self._order = [name for _, name in in_turns(list(choices), turns)]
        self._planned = 0
        self._made: Iterator[tuple[str, bool]] = self._places()
        self.rounds: dict[str, list[Round]] = {name: [] for name in choices}

    @property
    def proposers(self) -> Sequence[Proposer]:
        found = [choice.proposer for choice in self._choices.values() if choice.proposer]
        return list({id(proposer): proposer for proposer in found}.values())

    @property
    def done(self) -> bool:
        """Whether every choice had its turns."""
        return self._planned > len(self._order) * ROUNDS

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        turn = min(self._planned // ROUNDS, len(self._order) - 1)
        self._planned += 1
        return self._choices[self._order[turn]].plan()

    def observe(self, round: Round, /) -> None:
        name, counts = next(self._made, ("", False))
        if counts:
            self.rounds[name].append(round)

    def _places(self) -> Iterator[tuple[str, bool]]:
        for name in self._order:
            for index in range(ROUNDS):
                yield name, index > 0
