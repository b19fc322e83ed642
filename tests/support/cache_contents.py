"""Drives models and their caches in tests, and says what a cache holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, cast

import attrs
import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    trim_prompt_cache,
)

from speculate import SpeculativeModel
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import RewindError
from speculate.models.adapter import StockAdapter
from speculate.models.registry import adapter_for
from speculate.protocols import Recurrence, Rollbackable, StockModel
from tests.support import tiny

EVERY: Final[dict[str, Callable[[], nn.Module]]] = {
    **tiny.FAMILIES,
    **tiny.MORE,
    **tiny.FOLDED,
}
FAMILIES: Final = sorted([*tiny.FAMILIES, "qwen3_5_folded"])
ALL: Final = sorted(EVERY)
CUT_ANYWHERE: Final = sorted(set(EVERY) - {"lfm2"})
"""Families whose every cache can be cut at any token."""
HYBRIDS: Final = ("qwen3_5", "qwen3_next", *tiny.FOLDED)

Entry = mx.array | None
Caches = list[Rollbackable]


def adapted(stock: nn.Module, recurrence: Recurrence | None = None) -> StockAdapter:
    """A fresh adapter around a stock model."""
    model = cast(StockModel, stock)
    make = adapter_for(model)
    adapter = make(model, head=None, eos_token_ids=(), vocabulary=None, recurrence=recurrence)
    assert isinstance(adapter, StockAdapter)
    return adapter


@cache
def stock(family: str) -> Any:
    """The stock model of a family. Shared: do not change it."""
    return EVERY[family]()


@cache
def model(family: str) -> StockAdapter:
    """The adapter of a family. Shared: do not change it."""
    return adapted(stock(family), tiny.recurrence(family))


@cache
def ids(count: int, seed: int = 0) -> tuple[int, ...]:
    """Random ids."""
    return tuple(random.Random(seed).choices(range(tiny.VOCAB), k=count))


def other(token: int) -> int:
    """An id that is not `token`."""
    return (token + 1) % tiny.VOCAB


def batch(tokens: Sequence[int]) -> mx.array:
    """Ids as a forward takes them."""
    return mx.array(list(tokens), dtype=mx.uint32)[None]


def feed(driven: SpeculativeModel, caches: Sequence[object], tokens: Sequence[int]) -> mx.array:
    """Logits `(T, vocabulary)` of one forward."""
    logits = driven.forward(batch(tokens), caches).logits[0]
    mx.eval(logits)
    return logits


def cold(driven: SpeculativeModel, tokens: Sequence[int]) -> tuple[mx.array, Caches]:
    """Logits `(T, vocabulary)` and caches of one prefill from nothing."""
    caches = driven.make_cache()
    return feed(driven, caches, tokens), caches


def write(layer: object, rows: mx.array) -> tuple[mx.array, mx.array]:
    """What a layer sees of its keys and values when it writes some, all the same."""
    rows_cache: Any = layer
    keys, values = rows_cache.update_and_fetch(rows, rows)
    return keys, values


def to_list(array: mx.array) -> list[Any]:
    """The values of an array, flat."""
    return cast("list[Any]", array.flatten().tolist())


def speculate_all(caches: Caches) -> None:
    """Record from here on, cache by cache, as a loop without windows does."""
    for layer in caches:
        layer.start_speculation()


def refused(call: Callable[..., object], *args: object) -> bool:
    """Whether a call raises `RewindError`."""
    try:
        call(*args)
    except RewindError:
        return True
    return False


def trim_all(caches: Caches, n: int) -> None:
    """Take `n` tokens back as loops for mlx-lm do, and insist on all of them."""
    taken: object = trim_prompt_cache(list(caches), n)
    assert taken == n, f"took {taken} tokens back, not {n}"


# What caches hold.


@attrs.frozen(eq=False)
class Holding:
    """What a list of caches holds, apart from where the rows lie."""

    lengths: list[int | None]
    entries: list[list[Entry]]


def holding(caches: Sequence[object]) -> Holding:
    """The content now; later writes do not reach it."""
    entries = [contents(layer) for layer in caches]
    mx.eval([entry for layer in entries for entry in layer if entry is not None])
    return Holding([length(layer) for layer in caches], entries)


def length(layer: object) -> int | None:
    """Tokens in a cache; `None` for a state of mlx-lm's, which does not count them."""
    if isinstance(layer, Rollbackable):
        return layer.length()
    if isinstance(layer, CacheList):
        return max((n for n in map(length, layer.caches) if n is not None), default=None)
    return None if isinstance(layer, ArraysCache) else int(getattr(layer, "offset", 0))


def contents(layer: object) -> list[Entry]:
    """What a cache holds, rows in time order, of ours or of mlx-lm."""
    if isinstance(layer, CacheList):
        return [entry for member in layer.caches for entry in contents(member)]
    if isinstance(layer, ArraysCache):
        return [*layer.cache]
    if isinstance(layer, QuantizedKVCache):
        keys: Any = layer.keys
        values: Any = layer.values
        if keys is None:
            return [None] * 6
        return [part[..., : layer.offset, :] for part in (*keys, *values)]
    if isinstance(layer, RotatingKVCache):
        return _window(layer)
    assert isinstance(layer, KVCache)
    return [None if b is None else b[..., : layer.offset, :] for b in (layer.keys, layer.values)]


def _window(layer: RotatingKVCache) -> list[Entry]:
    """The sinks and the last rows, as many as a step may see."""
    if isinstance(layer, RewindableRotatingKVCache):
        return [*(layer.window(min(layer.rows(), layer.max_size)) or (None, None))]
    buffers = (layer.keys, layer.values)
    return [None if buffer is None else _last_of(layer, buffer) for buffer in buffers]


def _last_of(layer: RotatingKVCache, buffer: mx.array) -> mx.array:
    ordered: mx.array = layer._temporal_order(buffer)
    rows = min(ordered.shape[2], layer.max_size)
    sinks = min(layer.keep, rows)
    tail = ordered[..., ordered.shape[2] - (rows - sinks) :, :]
    return mx.concatenate([ordered[..., :sinks, :], tail], axis=2)


def differences(one: Holding, another: Holding) -> list[str]:
    """Where two holdings differ at all; empty if they are equal bit for bit."""
    found = []
    pairs = zip(one.lengths, another.lengths, strict=True)
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        found.append(f"lengths {one.lengths} and {another.lengths}")
    elif _all_equal(one, another):
        return []
    for index, (left, right) in enumerate(zip(one.entries, another.entries, strict=True)):
        for slot, (a, b) in enumerate(zip(left, right, strict=True)):
            if not equal(a, b):
                found.append(f"layer {index}, entry {slot}: {distance(a, b)}")
    return found


def _all_equal(one: Holding, another: Holding) -> bool:
    """Whether every entry is equal: one evaluation for all of them."""
    left, right = ([e for layer in held.entries for e in layer] for held in (one, another))
    shapes = [[None if e is None else e.shape for e in side] for side in (left, right)]
    if shapes[0] != shapes[1]:
        return False
    pairs = zip(left, right, strict=True)
    flags = [mx.array_equal(a, b) for a, b in pairs if a is not None and b is not None]
    return not flags or bool(mx.all(mx.stack(flags)))


def equal(a: Entry, b: Entry) -> bool:
    """Equal bit for bit. An empty array is as good as none."""
    if a is None or b is None:
        return all(array is None or array.size == 0 for array in (a, b))
    return a.shape == b.shape and bool(mx.array_equal(a, b))


def distance(a: Entry, b: Entry) -> str:
    """How far apart two entries are, for a message."""
    if a is None or b is None or a.shape != b.shape:
        shapes = [None if array is None else array.shape for array in (a, b)]
        return f"shapes {shapes[0]} and {shapes[1]}"
    return f"{mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max().item()} apart"


def assert_equal(a: mx.array, b: mx.array, what: str) -> None:
    """0.0 apart."""
    assert equal(a, b), f"{what}: {distance(a, b)}"


def assert_same(one: Holding, another: Holding, what: str) -> None:
    """0.0 apart, everywhere."""
    found = differences(one, another)
    assert not found, f"{what}: " + "; ".join(found)


def assert_close(a: mx.array, b: mx.array, what: str) -> None:
    """Within what a rotated ring costs: 1e-4 of the largest logit."""
    largest = mx.abs(b).max().item()
    apart = mx.abs(a - b).max().item()
    assert isinstance(largest, float)
    assert isinstance(apart, float)
    assert apart <= 1e-4 * largest, f"{what}: {apart} apart, of {largest}"
