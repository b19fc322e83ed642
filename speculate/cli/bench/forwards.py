"""What a forward of several rows takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.protocols import SpeculativeModel

ROWS: Final = range(1, 10)
"""Widths of the forwards that are timed."""

REPEATS: Final = 9
"""Timed runs of each, after one to warm up. The fastest was disturbed the least."""


def time_forwards(
    model: SpeculativeModel, ids: Sequence[int], done: Callable[[], None]
) -> dict[int, float]:
    """Time the target's forwards behind a text.

    Args:
        model: The target.
        ids: The text.
        done: Called after each repeat.

    Returns:
        Seconds by rows, 1 to 9.
    """
    cache = model.make_cache()
    arrays = [array for member in cache for array in member.arrays()]
    mx.eval(model.forward(mx.array([list(ids)], dtype=mx.uint32), cache).hidden, arrays)
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    with speculation(cache) as window:
        # Widths take turns, so that a machine that slows down does so for all of them.
        for _ in range(1 + REPEATS):
            for rows in ROWS:
                fed = mx.array([(list(ids) * rows)[-rows:]], dtype=mx.uint32)
                began = time.perf_counter()
                out = model.forward(fed, cache)
                mx.eval(mx.argmax(out.logits[0], axis=-1))
                times[rows].append(time.perf_counter() - began)
                window.keep(0)
            done()
    return {rows: min(found[1:]) for rows, found in times.items()}
