"""All checks of a model, in the order in which they make sense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import attrs

from speculate.sampling.options import Sampling
from speculate.testing.verify.acceptance import DEPTH, acceptance_is_the_drafters_own
from speculate.testing.verify.forwards import forward_of_a_prefill, forward_of_blocks
from speculate.testing.verify.results import Difference, Result
from speculate.testing.verify.rewinds import (
    WIDTHS,
    rewinds_equal_a_cold_prefill,
    tails_leave_no_trace,
)
from speculate.testing.verify.seeds import seed_gives_its_text
from speculate.testing.verify.subject import Subject
from speculate.testing.verify.texts import (
    DEPTHS,
    coupled,
    text_by,
    text_by_all,
    text_by_mlx_lm,
)


@final
@attrs.frozen
class Case:
    """A check that is to be made.

    Attributes:
        check: Which one.
        name: Of what.
    """

    check: str
    name: str
    _make: Callable[[], Result]

    def run(self) -> Result:
        """Make it. What the model or a drafter raises is a bug, and no exception."""
        try:
            return self._make()
        except Exception as error:
            detail = f"raised {type(error).__name__}: {error}"
            return Result(1, "runs", [Difference(0, math.inf, None, "bug", detail)])


def cases(subject: Subject) -> list[Case]:
    """Every check that the model, and those who draft for it, give cause for."""
    return [
        *_of_the_model(subject),
        *_of_texts(subject),
        *_of_acceptance(subject),
        *_of_seeds(subject),
    ]


def _of_the_model(subject: Subject) -> Iterator[Case]:
    if subject.oracle.stock is not None:
        yield Case("forward", "blocks, over mlx-lm's caches", partial(forward_of_blocks, subject))
        yield Case("forward", "a cold prefill, over ours", partial(forward_of_a_prefill, subject))
    yield Case("tails", "two behind each kept point", partial(tails_leave_no_trace, subject))
    widths = f"blocks of {WIDTHS[0]} to {WIDTHS[-1]}, each cut"
    yield Case("rewind", widths, partial(rewinds_equal_a_cold_prefill, subject))


def _of_texts(subject: Subject) -> Iterator[Case]:
    if subject.oracle.stock is not None:
        yield Case("text", "mlx-lm, greedy", partial(text_by_mlx_lm, subject, Sampling()))
    for mode, sampling in _modes(subject):
        for drafter in subject.drafters:
            name = f"{drafter.name}, depth {DEPTHS[0]} to {DEPTHS[-1]}, {mode}"
            yield Case("text", name, partial(text_by, subject, drafter, sampling))
        if subject.drafters:
            yield Case("text", f"adaptive, {mode}", partial(text_by_all, subject, sampling))


def _of_acceptance(subject: Subject) -> Iterator[Case]:
    for mode, sampling in _modes(subject):
        for drafter in subject.drafters:
            make = partial(acceptance_is_the_drafters_own, subject, drafter, sampling)
            yield Case("acceptance", f"{drafter.name}, depth {DEPTH}, {mode}", make)


def _of_seeds(subject: Subject) -> Iterator[Case]:
    # Another seed than that of the texts.
    seed = subject.seed + 1
    make = partial(seed_gives_its_text, subject, seed)
    yield Case("seed", f"{seed}: off, by each, in turn", make)


def _modes(subject: Subject) -> list[tuple[str, Sampling]]:
    return [("greedy", Sampling()), ("coupled", coupled(subject.seed))]
