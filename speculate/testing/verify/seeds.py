"""Whether a seed gives its text again: whoever drafts, however much, and from anywhere on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from speculate.protocols import Strategy
from speculate.strategies.fixed import Fixed, Off
from speculate.testing.fakes import ScheduledStrategy
from speculate.testing.verify.results import Difference, Result
from speculate.testing.verify.subject import Subject
from speculate.testing.verify.texts import coupled, follow

SEED_DEPTHS: Final = (4, 0, 1, 2, 7)
"""Of drafts in turn; 0 is a round without one."""


def seed_gives_its_text(subject: Subject, seed: int) -> Result:
    """The text of one seed: off, by each proposer, by all of them in turn, and from its middle.

    Whatever draws from random numbers that others draw from gives another text each time.
    """
    plain, compared, differences = subject.plain(coupled(seed)), 0, list[Difference]()
    for how, start, strategy in _seed_runs(subject, seed):
        count, found = follow(subject, plain, strategy, how, start)
        compared += count
        differences += found
    return Result(compared, "tokens", differences)


def _seed_runs(subject: Subject, seed: int) -> Iterator[tuple[str, int, Strategy]]:
    """Ways to decode one text: in words, from where, and by whom."""
    yield "off", 0, Off()
    for drafter in subject.drafters:
        yield f"{drafter.name}, depth 4", 0, Fixed(drafter.make(), 4)
    yield "in turn", 0, _in_turn(subject, seed)
    yield "in turn, from the middle", subject.tokens // 2, _in_turn(subject, seed + 1)
    yield "off, again", 0, Off()


def _in_turn(subject: Subject, seed: int) -> Strategy:
    """Somebody else in every round, and another depth."""
    dice = random.Random(seed)
    proposers = [drafter.make() for drafter in subject.drafters]
    if not proposers:
        return Off()
    plans = [(dice.choice(proposers), dice.choice(SEED_DEPTHS)) for _ in range(subject.tokens)]
    return ScheduledStrategy([*plans, *((proposer, 0) for proposer in proposers)])
