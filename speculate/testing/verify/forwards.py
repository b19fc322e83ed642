"""Whether an adapter computes what mlx-lm computes."""

from __future__ import annotations

from typing import Final

from speculate.testing.verify.oracle import row
from speculate.testing.verify.results import Difference, Result
from speculate.testing.verify.rounding import Rounding
from speculate.testing.verify.subject import Subject

BLOCK_WIDTHS: Final = (1, 2, 3, 9, 4, 1, 1, 5, 6)
"""Of the blocks behind the prompt."""

SAME: Final = Rounding()
"""Blocks of one width round alike, whatever the device."""


def forward_of_blocks(subject: Subject) -> Result:
    """The same blocks fed to the adapter and to mlx-lm's model, each over mlx-lm's own caches."""
    ours, theirs = subject.oracle.caches(), subject.oracle.caches()
    differences: list[Difference] = []
    start = 0
    for width in (len(subject.prompt), *BLOCK_WIDTHS):
        ids = subject.ids(start, start + width)
        found = subject.model.forward(row(ids), ours).logits[0]
        expected = subject.oracle.feed(ids, theirs)
        differences += SAME.compare(found, expected, start, f"a block of {width}")
        start += width
    return Result(start, "rows", differences)


def forward_of_a_prefill(subject: Subject) -> Result:
    """A cold prefill by the adapter, over its own caches, and one by mlx-lm's model."""
    ids = subject.prompt
    found = subject.model.forward(row(ids), subject.model.make_cache()).logits[0]
    differences = SAME.compare(found, subject.oracle.cold(ids), 0, "a cold prefill")
    return Result(len(ids), "rows", differences)
