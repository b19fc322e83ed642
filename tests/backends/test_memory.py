"""What caches keep alive: no buffer that nobody needs, and no copy that nobody asked for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from speculate.backends.adoption import adopt
from tests.backends.driving import Caches, cold, feed, ids, model, speculate_all
from tests.backends.layers import consume, group, make

ROW = 2 * 64 * 4  # keys and values of one row below, in bytes


def long_window(rows: int) -> tuple[Caches, RotatingKVCache]:
    """A window of 8 that was fed row by row, and the cache of mlx-lm it came from."""
    stock = RotatingKVCache(max_size=8)
    caches = adopt([stock])
    (cache,) = caches
    assert isinstance(cache, RotatingKVCache)
    cache.update_and_fetch(mx.ones((1, 1, rows, 64)), mx.ones((1, 1, rows, 64)))
    mx.eval(caches[0].arrays())
    return caches, stock


def held_after(action: Callable[[], object]) -> tuple[int, object]:
    """Bytes that are in use more than before, and what the action returned."""
    gc.collect()
    before = mx.get_active_memory()
    result = action()
    gc.collect()
    return mx.get_active_memory() - before, result


def test_a_window_that_is_handed_back_keeps_its_own_rows_only() -> None:
    def handed_back() -> RotatingKVCache:
        caches, stock = long_window(110)
        assert caches[0].hand_back() is stock
        mx.eval(stock.keys, stock.values)
        return stock

    held, stock = held_after(handed_back)
    assert isinstance(stock, RotatingKVCache)
    assert stock.nbytes == 8 * ROW
    assert held <= 2 * 8 * ROW, f"{held} bytes for 8 rows of {ROW}"


def test_a_long_chunk_is_not_kept_whole() -> None:
    held, _ = held_after(lambda: long_window(4000))
    assert held <= 200 * ROW, f"{held} bytes for a window of 8 rows of {ROW}"


def test_a_windows_buffer_stops_growing() -> None:
    caches = make("window")
    speculate_all(caches)
    sizes = set()
    for _ in range(60):
        consume("window", caches, ids(10))
        sizes.add(caches[0].arrays()[0].shape[2])
    assert max(sizes) <= 8 + 64 + 64


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss"])
def test_records_are_let_go(family: str) -> None:
    """By `stop_speculation`, and by time: not more than a window's worth is kept."""
    caches = cold(model(family), ids(200))[1]
    speculate_all(caches)

    def steps(count: int) -> None:
        for _ in range(count):
            feed(model(family), caches, [1])
            mx.eval([layer.arrays() for layer in caches])

    steps(80)
    grown, _ = held_after(lambda: steps(80))
    one_state = sum(array.nbytes for array in caches[0].arrays())
    assert grown < 8 * one_state, "records pile up"
    for layer in caches:
        layer.stop_speculation()
    if family == "qwen3_5":
        freed, _ = held_after(lambda: [layer.start_speculation() for layer in caches])
        assert freed <= 0


def test_a_dropped_list_is_freed_at_once() -> None:
    """Without waiting for the garbage collector: caches and their group are no cycle."""
    gc.disable()
    try:
        caches = cold(model("qwen3_5"), ids(9))[1]
        speculate_all(caches)
        feed(model("qwen3_5"), caches, ids(3))
        refs = [weakref.ref(layer) for layer in caches]
        refs.append(weakref.ref(group(caches)))
        del caches
        assert [ref() for ref in refs] == [None] * len(refs)
    finally:
        gc.enable()


def test_accepting_everything_copies_no_state() -> None:
    caches = make("state")
    consume("state", caches, ids(3))
    speculate_all(caches)
    consume("state", caches, ids(4, seed=2))
    state = caches[0].arrays()
    caches[0].trim(0)
    assert all(one is other for one, other in zip(caches[0].arrays(), state, strict=True))


def test_taking_back_a_whole_block_copies_no_state() -> None:
    caches = make("state")
    consume("state", caches, ids(3))
    before = caches[0].arrays()
    speculate_all(caches)
    consume("state", caches, ids(4, seed=2))
    caches[0].trim(4)
    assert all(one is other for one, other in zip(caches[0].arrays(), before, strict=True))


def test_the_arrays_move_and_have_one_owner() -> None:
    rows, state = KVCache(), ArraysCache(1)
    rows.update_and_fetch(mx.ones((1, 1, 3, 8)), mx.ones((1, 1, 3, 8)))
    state[0] = mx.ones((1, 8))
    keys, entry = rows.keys, state[0]
    adopted = adopt([rows, state])
    assert rows.keys is None
    assert state[0] is None
    assert adopted[0].arrays()[0] is keys
    assert adopted[1].arrays()[0] is entry
    for layer in adopted:
        layer.hand_back()
    assert rows.keys is keys
    assert state[0] is entry
    assert not adopted[0].arrays()
    assert not adopted[1].arrays()


def test_rows_are_written_in_place() -> None:
    """A round of blocks and trims never copies the buffer."""
    for kind in ("rows", "window"):
        caches = make(kind)
        consume(kind, caches, ids(9))
        speculate_all(caches)
        buffer = caches[0].arrays()[0]
        for _ in range(5):
            consume(kind, caches, ids(5, seed=2))
            mx.eval(caches[0].arrays())
            caches[0].trim(4)
        assert caches[0].arrays()[0] is buffer
