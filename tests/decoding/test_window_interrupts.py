"""Ctrl-C at any line of a window: every cache is at a kept point, and whose it was."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from typing import Final

import pytest

from speculate import speculation
from speculate.errors import RewindError
from tests.support.cache_contents import assert_equal, batch, cold, feed, ids, model, stock
from tests.support.interrupts import Interrupter

TEXT: Final = ids(12, seed=1)
KEPT: Final = ids(6, seed=2)
POINTS: Final = (0, 2, 5, 6)
"""Tokens of `KEPT` that are kept at one time or another."""

FAMILIES: Final = ("dense", "gpt_oss", "qwen3_5", "qwen3_5_folded", "lfm2")
SAMPLED: Final = 5


def caches_of(family: str, *, own: bool) -> list[object]:
    caches = cold(model(family), TEXT)[1]
    return [*caches] if own else [cache.release() for cache in caches]


def rounds(family: str, caches: list[object], reached: list[int]) -> None:
    """Three rounds, and one that nothing is kept of. `reached` are the points that may hold."""
    with speculation(caches) as window:
        for start, stop in pairwise(POINTS):
            feed(model(family), caches, [*KEPT[start:stop], *ids(stop, seed=3)])
            reached.append(stop)
            window.keep(stop - start)
            del reached[:-1]
        feed(model(family), caches, ids(2, seed=4))


@cache
def lines(family: str, own: bool) -> int:
    counting = Interrupter()
    for _ in range(2):
        caches, counting = caches_of(family, own=own), Interrupter()
        try:
            with counting:
                rounds(family, caches, [0])
        except RewindError:
            assert family == "lfm2"
    return counting.lines


def check(family: str, own: bool, at: int) -> None:
    caches = caches_of(family, own=own)
    objects, reached = list(caches), [0]
    try:
        with Interrupter(at) as interrupter:
            rounds(family, caches, reached)
    except KeyboardInterrupt:
        pass
    where = f"line {at}, {interrupter.where}"
    assert all(a is b for a, b in zip(caches, objects, strict=True)), where
    # The one before, where a keep was interrupted, or the one that it was to make.
    with speculation(caches) as window:
        found = feed(model(family), caches, [9])[-1]
        window.keep(1)
    expected = {n: cold(model(family), [*TEXT, *KEPT[:n], 9])[0][-1] for n in reached}
    close = [n for n, row in expected.items() if bool((found == row).all())]
    assert close, f"{where}: at none of {reached}"
    text = [*TEXT, *KEPT[: close[0]], 9]
    with speculation(caches) as window:
        feed(model(family), caches, ids(3, seed=5))
        window.keep(0)
        found = feed(model(family), caches, [7])[-1]
        window.keep(1)
    assert_equal(found, cold(model(family), [*text, 7])[0][-1], where)
    if not own:
        again = stock(family)(batch([3]), cache=caches)[0, -1]
        assert again.shape == found.shape


CASES: Final = [(family, own) for family in FAMILIES for own in (True, False)][:-1]
"""Without mlx-lm's caches of lfm2: those cannot be owed tokens."""


@pytest.mark.parametrize(("family", "own"), CASES)
def test_an_interrupt_at_some_lines(family: str, own: bool) -> None:
    for at in random.Random(family).sample(range(1, lines(family, own) + 1), SAMPLED):
        check(family, own, at)


@pytest.mark.soak
@pytest.mark.parametrize(("family", "own"), CASES)
def test_an_interrupt_at_every_line(family: str, own: bool) -> None:
    failures = []
    for at in range(1, lines(family, own) + 1):
        try:
            check(family, own, at)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)
