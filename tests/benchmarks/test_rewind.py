"""The ways that are compared do the same: they differ in time alone."""

from __future__ import annotations

import mlx.core as mx
import pytest

from benchmarks.rewind import PROMPT, feed, heading, line, measure
from benchmarks.rewind_ways import WAYS, Shape
from speculate import speculation

SHAPE = Shape(hidden=64, key_heads=2, value_heads=4, width=8)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_goes_on_from_what_stays(name: str) -> None:
    stock = SHAPE.build()
    adapt, after_rejection = WAYS[name]
    model = adapt(stock)
    caches, straight = model.make_cache(), model.make_cache()
    feed(model, caches, PROMPT)
    feed(model, straight, PROMPT)
    with speculation(caches) as window:
        for stay in (1, 3, 2):
            feed(model, caches, 4)
            window.keep(stay)
            after_rejection(caches)
            feed(model, straight, stay)
        found = feed(model, caches, 4)
    assert mx.array_equal(found, feed(model, straight, 4))


def test_the_table_has_a_column_for_every_way() -> None:
    shares = measure(SHAPE.build(), 4, 1, repeats=1)
    assert {name: len(values) for name, values in shares.items()} == dict.fromkeys(WAYS, 1)
    ways = {name: {"median": 0.5, "low": 0.25, "high": 1.0} for name in WAYS}
    row = line({"hidden": 64, "value_heads": 4, "width": 8, "tokens": 4, "stay": 1, "ways": ways})
    assert row.count("0.50 (0.25 to 1.00)") == len(WAYS)
    assert row.count("|") == heading().splitlines()[0].count("|")
