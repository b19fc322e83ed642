"""Rows that a sliding window moves, counted by shapes: ours, and mlx-lm's on the same text."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx_lm.models import cache as stock_cache
from mlx_lm.models.cache import RotatingKVCache

from speculate.backends import rotating
from speculate.backends.adopt import adopt
from speculate.backends.rotating import RewindableRotatingKVCache
from tests.support.cache_contents import write

WINDOW: Final = 512
KEEP: Final = 4
SPARE: Final = {0: 512, KEEP: 256}
"""Rows of a buffer besides the window and what may come back."""


class Shape:
    """Stands in for an array: knows its shape, and counts the rows that are written into it."""

    written = 0

    def __init__(self, rows: int, *, zeros: bool = False) -> None:
        self.shape = (1, 1, rows, 1)
        self.dtype = mx.float32
        self.zeros = zeros

    def _rows(self, index: tuple[Any, ...]) -> int:
        return len(range(*index[1].indices(self.shape[2])))

    def __getitem__(self, index: tuple[Any, ...]) -> Shape:
        return Shape(self._rows(index))

    def __setitem__(self, index: tuple[Any, ...], new: Shape) -> None:
        assert self._rows(index) == new.shape[2], "rows that do not fit"
        Shape.written += new.shape[2]


def concatenate(parts: Sequence[Shape], axis: int = 0) -> Shape:
    """Zeros are made and not moved; one part alone is not copied."""
    if len(parts) > 1:
        Shape.written += sum(part.shape[2] for part in parts if not part.zeros)
    return Shape(sum(part.shape[2] for part in parts))


def contiguous(part: Shape) -> Shape:
    Shape.written += part.shape[2]
    return Shape(part.shape[2])


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that are fed `Shape`s get along with them."""
    fake = SimpleNamespace(
        array=mx.array,
        concatenate=concatenate,
        contiguous=contiguous,
        zeros=lambda shape, dtype=None: Shape(shape[2], zeros=True),
        depends=lambda inputs, dependencies: inputs,
    )
    for module in (rotating, stock_cache):
        monkeypatch.setattr(module, "mx", fake)


def feed(cache: Any, rows: int) -> float:
    """Rows of a buffer that one update moves; keys and values alike."""
    before = Shape.written
    cache.update_and_fetch(Shape(rows), Shape(rows))
    return (Shape.written - before) / 2


def ours(keep: int) -> RewindableRotatingKVCache:
    cache = RewindableRotatingKVCache(WINDOW, keep)
    cache.start_speculation()
    return cache


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("keep", [0, KEEP])
def test_a_verify_block_moves_its_own_rows_where_stock_copies_the_window(keep: int) -> None:
    """Stock cannot take the rejected rows back: it is fed what stays."""
    cache, stock = ours(keep), RotatingKVCache(WINDOW, keep)
    moved = copied = 0.0
    for _ in range(2000):
        cache.start_speculation()
        moved += feed(cache, 5)
        cache.trim(2)
        copied += feed(stock, 3)
    per_token, stocks = moved / 6000, copied / 6000
    assert per_token < stocks / 15
    own, sinks_and_covered = 5, KEEP + 5 if keep else 0
    assert per_token < (own + sinks_and_covered) / 3 + 1.1 * (WINDOW + 64) / SPARE[keep] + 0.3


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("speculating", [True, False])
def test_a_single_step_moves_one_row_as_stocks_does(speculating: bool) -> None:
    """But for the few steps that make room: they move the window once in so many tokens."""
    cache, stock = ours(0), RotatingKVCache(WINDOW)
    if not speculating:
        cache.stop_speculation()
    steps = [(feed(cache, 1), feed(stock, 1)) for _ in range(20_000)]
    large = [moved for moved, _ in steps if moved > 1]
    assert len(large) <= 2 + 20_000 / SPARE[0]
    assert max(large) <= WINDOW + 64 + 1
    assert {moved for moved, _ in steps if moved <= 1} == {1}
    assert sum(moved for moved, _ in steps) <= 20_000 * (1 + (WINDOW + 64) / SPARE[0]) + WINDOW * 2


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("speculating", [True, False])
def test_sinks_cost_a_step_their_own_rows_and_not_the_window(speculating: bool) -> None:
    cache = ours(KEEP)
    if not speculating:
        cache.stop_speculation()
    steps = [feed(cache, 1) for _ in range(20_000)]
    # The row itself, the sinks before the window, and a copy of the rows they overwrite next.
    assert {moved for moved in steps[WINDOW:] if moved < WINDOW} == {KEEP + 2}
    assert sum(moved >= WINDOW for moved in steps) <= 1 + 20_000 / SPARE[KEEP]


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("keep", [0, KEEP])
def test_a_rewind_moves_an_index(keep: int) -> None:
    """And what follows a rewind of single steps writes again what the sinks covered."""
    cache = ours(keep)
    for _ in range(WINDOW + 20):
        feed(cache, 1)
    for n in (1, 7, 3):
        cache.start_speculation()
        for _ in range(n):
            feed(cache, 1)
        before = Shape.written
        cache.trim(n)
        assert Shape.written == before
        assert feed(cache, 1) <= (1 if keep == 0 else 2 * KEEP + 2 * n + 2)


@pytest.mark.parametrize("keep", [0, KEEP])
@pytest.mark.parametrize("loop", ["evaluates the caches", "evaluates the output"])
def test_single_steps_past_the_wrap_copy_no_buffer(keep: int, loop: str) -> None:
    """MLX writes in place only if nothing else references the buffer, in any order."""
    (cache,) = adopt([RotatingKVCache(max_size=4096, keep=keep)])
    write(cache, mx.ones((1, 2, 4097, 64)))
    cache.start_speculation()
    peaks = []
    for _ in range(8):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        keys, values = write(cache, mx.ones((1, 2, 1, 64)))
        mx.eval(mx.sum(keys[..., :1]) + mx.sum(values[..., :1]))
        if loop == "evaluates the caches":
            mx.eval(cache.arrays())
        del keys, values
        peaks.append(mx.get_peak_memory() - before)
    buffer = 4096 * 2 * 64 * 4
    # The first steps make room, and copy the sinks for the first time.
    assert max(peaks[2:]) < buffer / 4, [round(peak / buffer, 3) for peak in peaks]
