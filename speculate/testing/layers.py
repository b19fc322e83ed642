"""Stand-ins for a model's layers: they compute in whole numbers, and so the same on any device.

What a layer gives for a token depends on every row or state that its cache shows it, and on
nothing else. The order in which rows are seen does not matter, as in attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast, final

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols import Entries, RecordsRollback

VOCAB: Final = 64
WIDTH: Final = 32
"""Numbers of a row: as many as a group of quantised rows needs."""

HEADS: Final = 4
"""So many that a buffer of rows is larger than what MLX shares rather than copies."""

TAPS: Final = 3
MODULUS: Final = 251


class Layer(Protocol):
    """What a layer does to its cache."""

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        """Feed tokens as a layer of a model would.

        Args:
            cache: Of mlx-lm, or what takes its place.
            tokens: `(1, T)` ids below 64.

        Returns:
            `(T, n)`, what the layer sees for each token: whole numbers, in any dtype.
        """


class Rows(Protocol):
    """A cache of keys and values, as far as a layer knows it."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, mx.array]:
        """Add rows `(1, heads, T, width)`, and give all that a step may see."""


@runtime_checkable
class MakesMasks(Protocol):
    """A cache that knows what the rows of a block may see."""

    def make_mask(self, N: int, *, return_array: bool, window_size: int | None) -> Mask:
        """The mask for `N` tokens, made before they are written."""


class States(Protocol):
    """A cache of a recurrent layer."""

    def __getitem__(self, index: int, /) -> mx.array | None: ...
    def __setitem__(self, index: int, value: mx.array | None, /) -> None: ...
    def advance(self, n: int, /) -> None: ...


class Listed(Protocol):
    """A cache that holds several."""

    caches: Sequence[object]


Mask = mx.array | str | None
"""`None` where everything is seen, "causal", or `(T, rows)`, true where a token sees a row."""


@final
class Attention:
    """Writes one row a token, and sums up the rows that cache and mask show.

    Args:
        mask: Makes the mask of a block, given the cache and the tokens of the block; for
            caches whose model makes it by itself. By default the cache is asked, and a block
            of one that makes none is causal.
    """

    def __init__(self, mask: Callable[[object, int], Mask] | None = None) -> None:
        self._mask = mask or _own_mask
        self._table = table(seed=5)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        rows, count = cast(Rows, cache), tokens.shape[1]
        mask = self._mask(cache, count)
        keys = positioned(self._table[tokens[0]], rows.offset)
        seen, values = (unpacked(x) for x in rows.update_and_fetch(keys, MODULUS - keys))
        visible = _visible(mask, count, seen.shape[0])[..., None]
        return mx.concatenate([(visible * seen).sum(1), (visible * values).sum(1)], axis=-1)


def _own_mask(cache: object, count: int) -> Mask:
    """As mlx-lm makes it for most models."""
    if isinstance(cache, MakesMasks):
        return cache.make_mask(count, return_array=False, window_size=None)
    return "causal" if count > 1 else None


def table(seed: int) -> mx.array:
    """A row of whole numbers for each id, `(64, 32)` int32."""
    return mx.random.randint(0, MODULUS, (VOCAB, WIDTH), key=mx.random.key(seed))


def positioned(rows: mx.array, offset: int) -> mx.array:
    """Rows `(T, n)` that tell where in the text they are: `(1, heads, T, n)` float32."""
    position = mx.arange(offset, offset + rows.shape[0])[:, None] + mx.arange(HEADS)[:, None, None]
    return ((rows * (2 * position + 1) + position) % MODULUS).astype(mx.float32)[None]


def unpacked(rows: object) -> mx.array:
    """What a cache shows, `(rows, n)`, as whole numbers, quantised or not."""
    if not isinstance(rows, mx.array):
        packed, scales, biases = cast("tuple[mx.array, mx.array, mx.array]", rows)
        group = WIDTH // scales.shape[-1]
        bits = 32 * packed.shape[-1] // WIDTH
        rows = mx.dequantize(packed, scales, biases, group_size=group, bits=bits)
    return mx.round(rows[0]).sum(axis=0)


def _visible(mask: Mask, count: int, rows: int) -> mx.array:
    """`(count, rows)`, whether each token sees each row."""
    if isinstance(mask, mx.array):
        return mx.broadcast_to(mask, (count, rows))
    prior = rows - count
    everything = mx.ones((count, rows), dtype=mx.bool_)
    return everything if mask is None else mx.arange(rows) <= mx.arange(count)[:, None] + prior


@final
class Recurrence:
    """Has a conv window and a state that takes in all that was ever fed.

    Args:
        records: Whether it says how to get back, or leaves it to the cache.
    """

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._table = table(seed=7)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        slots, count = cast(States, cache), tokens.shape[1]
        before = (slots[0], slots[1])
        window = mx.zeros((1, TAPS, WIDTH), mx.int32) if before[0] is None else before[0]
        state = mx.zeros((1, WIDTH), mx.int32) if before[1] is None else before[1]
        rows = mx.concatenate([window, self._table[tokens]], axis=1)
        states = []
        for t in range(count):
            state = (3 * state + rows[:, t + TAPS] * (1 + rows[:, t])) % MODULUS
            states.append(state)

        def after(m: int) -> Entries:
            return mx.contiguous(rows[:, m : m + TAPS]), states[m - 1]

        slots[0], slots[1] = after(count)
        slots.advance(count)
        if self._records and isinstance(cache, RecordsRollback) and cache.recording():
            cache.record_rollback(count, after, before)
        return mx.concatenate(states)


@final
class Together:
    """Several layers behind one cache that holds several.

    Args:
        parts: One for each of them.
    """

    def __init__(self, parts: Sequence[Layer]) -> None:
        self._parts = list(parts)

    def __call__(self, cache: object, tokens: mx.array, /) -> mx.array:
        members = cast(Listed, cache).caches
        pairs = zip(self._parts, members, strict=True)
        return mx.concatenate([part(member, tokens) for part, member in pairs], axis=-1)
