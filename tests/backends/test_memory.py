"""Memory held by caches: no unneeded buffer, and no needless copy."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from speculate import speculation
from speculate.backends.adopt import adopt
from tests.support.cache_contents import Caches, cold, feed, ids, model, speculate_all, write
from tests.support.caches_by_kind import consume, group, make

ROW = 2 * 64 * 4  # keys and values of one row below, in bytes


def held_after(action: Callable[[], object]) -> tuple[int, object]:
    """Bytes that are in use more than before, and what the action returned."""
    gc.disable()  # so that nothing else is freed meanwhile
    try:
        before = mx.get_active_memory()
        result = action()
        return mx.get_active_memory() - before, result
    finally:
        gc.enable()


def test_a_long_chunk_is_not_kept_whole() -> None:
    def fed() -> Caches:
        caches = adopt([RotatingKVCache(max_size=8)])
        write(caches[0], mx.ones((1, 1, 4000, 64)))
        mx.eval(caches[0].arrays())
        return caches

    held, _ = held_after(fed)
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

    steps(66)
    grown, _ = held_after(lambda: steps(24))
    one_state = sum(array.nbytes for array in caches[0].arrays())
    assert grown < 8 * one_state, "records pile up"
    for layer in caches:
        layer.stop_speculation()
    if family == "qwen3_5":
        freed, _ = held_after(lambda: speculate_all(caches))
        assert freed <= 0


def test_a_dropped_list_is_freed_at_once() -> None:
    """Without waiting for the garbage collector: caches and their group are no cycle."""
    gc.disable()
    try:
        caches = cold(model("qwen3_5"), ids(9))[1]
        speculate_all(caches)
        feed(model("qwen3_5"), caches, ids(3))
        parts: list[object] = [*caches, group(caches)]
        refs = [weakref.ref(part) for part in parts]
        del parts
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


def test_rewinding_a_whole_block_copies_no_state() -> None:
    caches = make("state")
    consume("state", caches, ids(3))
    before = caches[0].arrays()
    speculate_all(caches)
    consume("state", caches, ids(4, seed=2))
    caches[0].trim(4)
    assert all(one is other for one, other in zip(caches[0].arrays(), before, strict=True))


def test_the_arrays_move_and_have_one_owner() -> None:
    rows: Any = KVCache()
    state: Any = ArraysCache(1)
    write(rows, mx.ones((1, 1, 3, 8)))
    state[0] = mx.ones((1, 8))
    keys, entry = rows.keys, state[0]
    adopted = adopt([rows, state])
    assert [rows.keys, *state.cache] == [None, None], "two owners"
    assert adopted[0].arrays()[0] is keys
    assert adopted[1].arrays()[0] is entry
    for layer in adopted:
        layer.release()
    assert rows.keys is keys
    assert state[0] is entry
    assert not adopted[0].arrays()
    assert not adopted[1].arrays()


@pytest.mark.parametrize("kind", ["rows", "quantised rows"])
def test_rows_are_written_in_place(kind: str) -> None:
    """A round of blocks and trims never copies the buffer, however long the text is."""
    caches = make(kind)
    consume(kind, caches, ids(5000))
    speculate_all(caches)
    mx.eval(caches[0].arrays())
    buffers = sum(array.nbytes for array in caches[0].arrays())
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(5):
        consume(kind, caches, ids(5, seed=2))
        mx.eval(caches[0].arrays())
        caches[0].trim(4)
    assert mx.get_peak_memory() - before < buffers / 4


@pytest.mark.parametrize(
    "build",
    [
        KVCache,
        lambda: RotatingKVCache(max_size=4096),
        lambda: RotatingKVCache(max_size=4096, keep=4),
    ],
)
def test_rounds_in_a_window_copy_no_buffer(build: Callable[[], object]) -> None:
    """Holding on to the kept point costs references, and not the rows."""
    caches = adopt([build()])

    def feed_rows(count: int) -> None:
        with group(caches).block(mx.zeros((1, count), dtype=mx.uint32)):
            write(caches[0], mx.ones((1, 1, count, 64)))
        mx.eval(caches[0].arrays())

    feed_rows(5000)
    buffers = sum(array.nbytes for array in caches[0].arrays())
    with speculation(caches) as window:
        for rounds in (1, 6):  # the first may still have to make room
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            for _ in range(rounds):
                feed_rows(5)
                window.keep(1)
            copied = mx.get_peak_memory() - before
    assert copied < buffers / 4, f"{copied} bytes for a buffer of {buffers}"


def test_a_window_moves_once_in_many_tokens() -> None:
    """The rows that slid out are dropped when the buffer is full, and not before."""
    caches = make("window")
    consume("window", caches, ids(9))
    speculate_all(caches)
    rows, moves = 9, 0
    for _ in range(300):
        consume("window", caches, ids(5, seed=2))
        caches[0].trim(4)
        (cache,) = caches
        assert isinstance(cache, RotatingKVCache)
        moves += cache._idx < rows
        rows = cache._idx
    assert 1 <= moves <= 300 // 50
