"""Whether what was taken back is gone, and what was kept is all there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.testing.verify.oracle import CHUNK, row
from speculate.testing.verify.results import Difference, Result
from speculate.testing.verify.second_look import second_look
from speculate.testing.verify.subject import BEYOND, Subject

WIDTHS: Final = range(1, 10)
"""Of the blocks."""

START: Final = 3
"""Tokens in front of the first block."""

CUTS: Final = [(width, kept) for width in WIDTHS for kept in range(width + 1)]
"""Each of them, and how many of its tokens are kept."""

LENGTH: Final = sum(kept + 1 for _, kept in CUTS)
"""Tokens that a walk goes on by."""

Tail = Callable[[int, int], list[int]]
"""`tail(position, count)` gives tokens that will be taken back."""


@final
@attrs.frozen(eq=False)
class Step:
    """A block whose end was taken back, and the next token.

    Attributes:
        position: In the text, of the first row.
        rows: Logits of what was kept, and of the token behind it: `(kept + 1, vocabulary)`.
        what: Was done.
    """

    position: int
    rows: mx.array
    what: str


def walk(subject: Subject, start: int, tail: Tail) -> Iterator[Step]:
    """Go along the text in blocks of every width, of which every number of tokens is kept.

    Args:
        subject: The model.
        start: Tokens in front.
        tail: What is fed behind the tokens that stay.
    """
    model, caches = subject.model, subject.model.make_cache()
    for position in range(0, start, CHUNK):
        model.forward(row(subject.ids(position, min(position + CHUNK, start))), caches)
        mx.eval([cache.arrays() for cache in caches])
    with speculation(caches) as window:
        for width, kept in CUTS:
            right, stop = subject.ids(start, start + kept), start + kept
            block = model.forward(row([*right, *tail(stop, width - kept)]), caches).logits[0]
            window.keep(kept)
            behind = model.forward(row(subject.ids(stop, stop + 1)), caches).logits[0]
            window.keep(1)
            rows = mx.concatenate([block[:kept], behind])
            mx.eval(rows)
            yield Step(start, rows, f"{kept} kept of a block of {width}")
            start = stop + 1


def starts(subject: Subject) -> list[int]:
    """Where to walk: from the front.

    Where that ends before two windows are full, across the first of them and behind the second
    as well.
    """
    window = subject.window
    if 2 * window + BEYOND < START + LENGTH:
        return [START]
    return sorted({START, max(START, window - LENGTH // 2), 2 * window + BEYOND})


def tails_leave_no_trace(subject: Subject) -> Result:
    """Two walks that take back other tokens: the same logits, of what they keep and behind it."""
    rows, differences = 0, list[Difference]()
    for start in starts(subject):
        one, other = (walk(subject, start, tail) for tail in (_next(subject), _drawn(subject)))
        for step, same in zip(one, other, strict=True):
            rows += step.rows.shape[0]
            differences += subject.rounding.compare(same.rows, step.rows, step.position, step.what)
    return Result(rows, "rows", differences)


def rewinds_equal_a_cold_prefill(subject: Subject) -> Result:
    """A walk, and the logits that mlx-lm's model gives for the same text at once."""
    rows, differences = 0, list[Difference]()
    for start in starts(subject):
        ids, found = subject.ids(0, start + LENGTH), list[Difference]()
        expected = subject.oracle.cold(ids, start)
        for step in walk(subject, start, _next(subject)):
            first, count = step.position - start, step.rows.shape[0]
            rows += count
            found += subject.rounding.compare(
                step.rows, expected[first : first + count], step.position, step.what
            )
        differences += second_look(subject, found, ids, start, start)
    filled = (starts(subject)[-1] + LENGTH) / subject.window if subject.window else 0
    note = f"up to {filled:.1f} windows of {subject.window}" if subject.window else ""
    return Result(rows, "rows", differences, note)


def _next(subject: Subject) -> Tail:
    """Tokens that are off by one."""

    def tail(position: int, count: int) -> list[int]:
        ids = subject.ids(position, position + count)
        return [(id_ + 1) % subject.model.vocab_size for id_ in ids]

    return tail


def _drawn(subject: Subject) -> Tail:
    """Random tokens."""
    dice = random.Random(subject.seed)
    size = subject.model.vocab_size
    return lambda position, count: [dice.randrange(size) for _ in range(count)]
