"""Stand-ins for a model's layers, small enough to try a cache with thousands of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast, final

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from speculate.backends.adoption import adopt
from speculate.backends.group import CacheGroup
from speculate.backends.joining import group_of
from speculate.protocols import Entries, RecordsRollback
from tests import tiny
from tests.backends.driving import Caches

WIDTH: Final = 32
TAPS: Final = 3


class Rows(Protocol):
    """A cache of rows."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array, /) -> object: ...


class Layer(Protocol):
    """What a layer does to its cache."""

    def make(self) -> object:
        """An empty cache of mlx-lm."""

    def feed(self, cache: object, tokens: mx.array, /) -> None:
        """Consume tokens `(1, T)`."""


def _table() -> mx.array:
    return mx.random.normal((tiny.VOCAB, WIDTH), key=mx.random.key(5))


@final
class Attention:
    """Writes one row a token, which says at which position it was written."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make
        self._table = _table()

    def feed(self, cache: object, tokens: mx.array, /) -> None:
        rows = cast(Rows, cache)
        positions = mx.arange(rows.offset, rows.offset + tokens.shape[1])[:, None]
        keys = (self._table[tokens[0]] + positions)[None, None]
        rows.update_and_fetch(keys, -keys)


@final
class Recurrence:
    """Has a conv window and a decaying state.

    Args:
        records: Whether it says how to get back.
    """

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._table = _table()

    def make(self) -> object:
        return ArraysCache(2)

    def feed(self, cache: object, tokens: mx.array, /) -> None:
        assert isinstance(cache, ArraysCache)
        slots: list[mx.array | None] = [*cache.cache]
        window = mx.zeros((1, TAPS, WIDTH)) if slots[0] is None else slots[0]
        state = mx.zeros((1, WIDTH)) if slots[1] is None else slots[1]
        rows = mx.concatenate([window, self._table[tokens]], axis=1)
        states = []
        for t in range(tokens.shape[1]):
            state = 0.9 * state + mx.sin(rows[:, t + TAPS] + rows[:, t])
            states.append(state)

        def after(m: int) -> Entries:
            return rows[:, m : m + TAPS], states[m - 1]

        fed = tokens.shape[1]
        cache[0], cache[1] = after(fed)
        cache.advance(fed)
        if self._records and isinstance(cache, RecordsRollback) and cache.recording():
            cache.record_rollback(fed, after, slots)


@final
class Both:
    """A recurrence and attention behind one cache."""

    def __init__(self, *, records: bool) -> None:
        self._parts: list[Layer] = [Recurrence(records=records), Attention(KVCache)]

    def make(self) -> object:
        return CacheList(*[part.make() for part in self._parts])

    def feed(self, cache: object, tokens: mx.array, /) -> None:
        assert isinstance(cache, CacheList)
        for part, member in zip(self._parts, cache.caches, strict=True):
            part.feed(member, tokens)


def sliding(window: int, keep: int = 0) -> Attention:
    return Attention(lambda: RotatingKVCache(max_size=window, keep=keep))


KINDS: Final[dict[str, list[Layer]]] = {
    "rows": [Attention(KVCache)],
    "quantised rows": [Attention(lambda: QuantizedKVCache(group_size=32, bits=8))],
    "window": [sliding(8)],
    "window of 1": [sliding(1)],
    "window with sinks": [sliding(8, keep=4)],
    "state": [Recurrence(records=True)],
    "state without records": [Recurrence(records=False)],
    "list": [Both(records=True)],
    "list without records": [Both(records=False)],
    "hybrid": [Recurrence(records=True), Attention(KVCache), sliding(8)],
    "hybrid without records": [Recurrence(records=False), Attention(KVCache), sliding(8)],
}
"""Each a list of layers whose caches are one group."""
CUT_ANYWHERE: Final = [name for name in KINDS if "without" not in name]
WHOLE_BLOCKS: Final = [name for name in KINDS if "without" in name]


def make(kind: str) -> Caches:
    """Fresh rewindable caches."""
    return adopt([layer.make() for layer in KINDS[kind]])


def group(caches: Caches) -> CacheGroup:
    """Their group."""
    found = group_of(caches)
    assert found is not None
    return found


def consume(
    kind: str, caches: Caches, tokens: Sequence[int], *, fail_after: int | None = None
) -> None:
    """One forward over tokens.

    Args:
        kind: One of `KINDS`.
        caches: Fed by it.
        tokens: Ids.
        fail_after: Raise when so many layers have consumed the tokens, or all of them.

    Raises:
        ZeroDivisionError: As asked for.
    """
    with group(caches).block(mx.array(list(tokens), dtype=mx.uint32)[None]) as fed:
        for layer, cache in list(zip(KINDS[kind], caches, strict=True))[:fail_after]:
            layer.feed(cache, fed)
        if fail_after is not None:
            raise ZeroDivisionError


def fresh(kind: str, tokens: Sequence[int]) -> Caches:
    """Caches that were fed just these tokens."""
    caches = make(kind)
    if tokens:
        consume(kind, caches, tokens)
    return caches
