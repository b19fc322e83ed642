"""The layers of the toy model, of random weights."""

from __future__ import annotations

import math
from typing import Final, cast, final

import mlx.core as mx

from speculate.protocols import Entries, RecordsRollback
from speculate.testing.layers import MakesMasks, Rows, States

WIDTH: Final = 32
HEADS: Final = 2
TAPS: Final = 3


def weights(seed: int, rows: int, columns: int) -> mx.array:
    """A random matrix that makes its layer matter."""
    return mx.random.normal((rows, columns), key=mx.random.key(seed)) * (3 / math.sqrt(WIDTH))


def normed(x: mx.array) -> mx.array:
    """Scaled to a root mean square of 1."""
    return mx.fast.rms_norm(x, None, 1e-5)


@final
class Attention:
    """Causal attention over what a cache shows."""

    def __init__(self, seed: int) -> None:
        self._projections = weights(seed, WIDTH, 3 * WIDTH)
        self._output = weights(seed + 1, WIDTH, WIDTH)

    def __call__(self, x: mx.array, cache: object) -> mx.array:
        rows, count = cast(Rows, cache), x.shape[1]
        parts = (x @ self._projections).reshape(1, count, 3 * HEADS, WIDTH // HEADS)
        q, k, v = mx.split(parts.transpose(0, 2, 1, 3), 3, axis=1)
        q, k = (self._rotated(part, rows.offset) for part in (q, k))
        mask = cast(MakesMasks, cache).make_mask(count, return_array=False, window_size=None)
        k, v = rows.update_and_fetch(k, v)
        scale = 1 / math.sqrt(WIDTH // HEADS)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
        return out.transpose(0, 2, 1, 3).reshape(1, count, WIDTH) @ self._output

    def _rotated(self, x: mx.array, offset: int) -> mx.array:
        return mx.fast.rope(x, x.shape[-1], traditional=False, base=1e4, scale=1.0, offset=offset)


@final
class Recurrence:
    """A short convolution, and a state that decays and takes in what comes out of it."""

    def __init__(self, seed: int) -> None:
        self._taps = weights(seed, TAPS + 1, WIDTH)
        self._decay = mx.sigmoid(weights(seed + 1, 1, WIDTH))

    def __call__(self, x: mx.array, cache: object) -> mx.array:
        slots, count = cast(States, cache), x.shape[1]
        before = (slots[0], slots[1])
        window = mx.zeros((1, TAPS, WIDTH)) if before[0] is None else before[0]
        state = mx.zeros((1, WIDTH)) if before[1] is None else before[1]
        rows = mx.concatenate([window, x], axis=1)
        states = []
        for t in range(count):
            mixed = (rows[:, t : t + TAPS + 1] * self._taps).sum(axis=1)
            state = self._decay * state + mixed * mx.sigmoid(mixed)
            states.append(state)

        def after(m: int) -> Entries:
            return mx.contiguous(rows[:, m : m + TAPS]), states[m - 1]

        slots[0], slots[1] = after(count)
        slots.advance(count)
        if isinstance(cache, RecordsRollback) and cache.recording():
            cache.record_rollback(count, after, before)
        return mx.stack(states, axis=1)
