"""Layers that use a cache in `CacheTests`, in place of a model's.

They compute in whole numbers, and so identically on every device. The output of a layer for a
token depends on every row or state that its cache shows, and on nothing else; as in attention,
the order of rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, cast, final

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.backends.group import group_of
from speculate.protocols import Entries, RecordsRollback

VOCAB: Final = 64
"""Number of token ids that the layers know."""

WIDTH: Final = 32
"""Numbers in a row: as many as a group of quantised rows needs."""

HEADS: Final = 4
"""Heads of a row: enough that MLX copies a slice of the buffer rather than sharing it."""

TAPS: Final = 3
"""Rows of the convolution window before the current one."""

MODULUS: Final = 251
"""All numbers are taken modulo this, so that float32 holds sums of rows exactly."""

Mask = mx.array | str | None
"""`None` if everything is visible, "causal", or `(T, rows)`, true where a token sees a row."""


class Layer(Protocol):
    """What a layer of a model does to its cache."""

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        """Feed ids below 64, `(1, T)`, to a cache of mlx-lm or its rewindable replacement.

        Returns:
            `(T, n)`, what the layer sees for each token: whole numbers, in any dtype.
        """


class RowCache(Protocol):
    """The part of a key-value cache that a layer uses."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, mx.array]:
        """Add rows `(1, heads, T, width)` and return all rows that the step may see."""


@runtime_checkable
class MakesMasks(Protocol):
    """A cache that knows which rows the tokens of a block may see."""

    def make_mask(self, N: int, *, return_array: bool, window_size: int | None) -> Mask:
        """Make the mask for `N` tokens before they are written."""


class StateCache(Protocol):
    """The part of a recurrent layer's cache that the layer uses."""

    def __getitem__(self, index: int, /) -> mx.array | None: ...
    def __setitem__(self, index: int, value: mx.array | None, /) -> None: ...
    def advance(self, n: int, /) -> None: ...


class ListCache(Protocol):
    """A cache that holds several caches."""

    caches: Sequence[object]


@final
class AttentionLayer:
    """A layer that writes one row per token and sums up the rows that cache and mask show.

    `mask` makes the mask of a block from the cache and the number of tokens, for caches whose
    model makes it itself. By default the cache is asked; without `make_mask` a block is causal.
    """

    def __init__(self, mask: Callable[[object, int], Mask] | None = None) -> None:
        self._mask = mask or _own_mask
        self._table = _embedding(seed=5)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        rows, count = cast(RowCache, cache), tokens.shape[1]
        mask = self._mask(cache, count)
        keys = _positioned(self._table[tokens[0]], rows.offset)
        seen, values = (_unpacked(x) for x in rows.update_and_fetch(keys, MODULUS - keys))
        visible = _visible(mask, count, seen.shape[0])[..., None]
        return mx.concatenate([(visible * seen).sum(1), (visible * values).sum(1)], axis=-1)


def _own_mask(cache: object, count: int) -> Mask:
    """Make a mask as mlx-lm does for most models."""
    if isinstance(cache, MakesMasks):
        return cache.make_mask(count, return_array=False, window_size=None)
    return "causal" if count > 1 else None


def _embedding(seed: int) -> mx.array:
    """One row of whole numbers per id, `(64, 32)` int32."""
    return mx.random.randint(0, MODULUS, (VOCAB, WIDTH), key=mx.random.key(seed))


def _positioned(rows: mx.array, offset: int) -> mx.array:
    """Mix positions into rows `(T, n)`: `(1, heads, T, n)` float32."""
    position = mx.arange(offset, offset + rows.shape[0])[:, None] + mx.arange(HEADS)[:, None, None]
    return ((rows * (2 * position + 1) + position) % MODULUS).astype(mx.float32)[None]


def _unpacked(rows: object) -> mx.array:
    """The rows that a cache shows, quantised or not, as whole numbers `(rows, n)`."""
    if not isinstance(rows, mx.array):
        packed, scales, biases = cast("tuple[mx.array, mx.array, mx.array]", rows)
        group = WIDTH // scales.shape[-1]
        bits = 32 * packed.shape[-1] // WIDTH
        rows = mx.dequantize(packed, scales, biases, group_size=group, bits=bits)
    return mx.round(rows[0]).sum(axis=0)


def _visible(mask: Mask, count: int, rows: int) -> mx.array:
    """`(count, rows)`, whether each token sees each row; 1 or 0, if not a bool."""
    if isinstance(mask, mx.array):
        return mx.broadcast_to(mask, (count, rows))
    return mx.ones((count, rows)) if mask is None else mx.tri(count, rows, rows - count)


@final
class StateLayer:
    """A layer with a convolution window and a state that depends on every token ever fed.

    With `records` the layer records how to rewind; otherwise it leaves that to the cache.
    """

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._table = _embedding(seed=7)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        rows = self._table[tokens]
        return mx.concatenate(run_recurrence(cache, rows, _next_state, records=self._records))


def _next_state(state: mx.array, rows: mx.array) -> mx.array:
    return (3 * state + rows[:, -1] * (1 + rows[:, 0])) % MODULUS


def run_recurrence(
    cache: object,
    fed: mx.array,
    step: Callable[[mx.array, mx.array], mx.array],
    *,
    records: bool = True,
) -> list[mx.array]:
    """Feed rows `(1, T, WIDTH)` to a recurrent layer, and return the state after each.

    `step` makes a state `(1, WIDTH)` of the one before and the last `TAPS + 1` rows. The cache
    holds the last `TAPS` rows and the state; `records` also records how to rewind it.
    """
    slots, count = cast(StateCache, cache), fed.shape[1]
    before = (slots[0], slots[1])
    window = mx.zeros((1, TAPS, WIDTH), fed.dtype) if before[0] is None else before[0]
    state = mx.zeros((1, WIDTH), fed.dtype) if before[1] is None else before[1]
    rows = mx.concatenate([window, fed], axis=1)
    states = []
    for t in range(count):
        state = step(state, rows[:, t : t + TAPS + 1])
        states.append(state)

    def after(m: int) -> Entries:
        return mx.contiguous(rows[:, m : m + TAPS]), states[m - 1]

    slots[0], slots[1] = after(count)
    slots.advance(count)
    if records and isinstance(cache, RecordsRollback) and cache.recording():
        cache.record_rollback(count, after, before)
    return states


@final
class CacheListLayer:
    """Several layers, one for each of the caches inside a cache that holds several."""

    def __init__(self, parts: Sequence[Layer]) -> None:
        self._parts = list(parts)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        members = cast(ListCache, cache).caches
        pairs = zip(self._parts, members, strict=True)
        return mx.concatenate([part(member, tokens) for part, member in pairs], axis=-1)


def run_layers(layers: Sequence[Layer], caches: Sequence[object], tokens: mx.array) -> mx.array:
    """Feed ids `(1, T)` to every layer over its own cache, as one forward if those form a group.

    Returns:
        `(T, n)` float32: what the layers see, side by side.
    """
    with as_block(caches, tokens) as fed:
        seen = [layer(cache, fed) for layer, cache in zip(layers, caches, strict=True)]
    return mx.concatenate([rows.astype(mx.float32) for rows in seen], axis=-1)


def as_block(caches: Sequence[object], tokens: mx.array) -> AbstractContextManager[mx.array]:
    """Make a forward atomic if the caches form a group; yields the ids to feed."""
    group = group_of(caches)
    return nullcontext(tokens) if group is None else group.block(tokens)
