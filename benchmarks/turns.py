"""Who is measured when: everyone takes turns, and every other time in reverse order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar, final

import attrs
import mlx.core as mx

from benchmarks.clock import now

Name = TypeVar("Name")

WARM_UP: Final = 1
"""Turns of each that do not count."""


@final
@attrs.frozen
class Turn:
    """What was done in one go.

    Attributes:
        tokens: That were emitted.
        seconds: That it took.
    """

    tokens: int
    seconds: float


Task = Iterator[Turn]
"""Something that can be done again and again, each time for one turn."""


def in_turns(names: list[Name], turns: int) -> Iterator[tuple[int, Name]]:
    """A B C, C B A, A B C, ...: what changes steadily meanwhile is unfair to nobody."""
    for turn in range(turns):
        for name in names[:: -1 if turn % 2 else 1]:
            yield turn, name


def take_turns(tasks: Mapping[str, Task], turns: int) -> dict[str, list[Turn]]:
    """Let each task have its turns, after some to warm up."""
    found: dict[str, list[Turn]] = {name: [] for name in tasks}
    for turn, name in in_turns(list(tasks), WARM_UP + turns):
        done = next(tasks[name])
        if turn >= WARM_UP:
            found[name].append(done)
    return found


def rounds(tokens: Iterator[bool], count: int = 1) -> Task:
    """Decode `count` rounds a turn, and let the device finish what was launched ahead.

    Args:
        tokens: For each token whether it is an accepted draft. A round ends with one that is
            not.
        count: Rounds of a turn.
    """
    while True:
        began, emitted = now(), 0
        for _ in range(count):
            emitted += 1
            while next(tokens):
                emitted += 1
        mx.synchronize()
        yield Turn(emitted, now() - began)
