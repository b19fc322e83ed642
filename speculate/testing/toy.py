"""`ToyModel` and `ToyHead`: tiny, deterministic models with caches of every kind.

Attention feeds a recurrence, which feeds a sliding window, so that a fault in any cache reaches
the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, cast, final

import mlx.core as mx

from speculate.backends.adopt import adopt
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import join
from speculate.backends.kv import RewindableKVCache
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import OptionError
from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing.layers import TAPS, MakesMasks, RowCache, as_block, run_recurrence
from speculate.testing.layers import WIDTH as WIDTH

HEADS: Final = 2
"""Attention heads."""


def _weights(seed: int, rows: int, columns: int) -> mx.array:
    """A random matrix, large enough that its layer affects the logits."""
    return mx.random.normal((rows, columns), key=mx.random.key(seed)) * (3 / math.sqrt(WIDTH))


def _normed(x: mx.array) -> mx.array:
    """Scale rows to a root mean square of 1."""
    return mx.fast.rms_norm(x, None, 1e-5)


@final
class ToyAttention:
    """Causal attention over the rows that a cache shows."""

    def __init__(self, seed: int) -> None:
        self._projections = _weights(seed, WIDTH, 3 * WIDTH)
        self._output = _weights(seed + 1, WIDTH, WIDTH)

    def __call__(self, x: mx.array, cache: object) -> mx.array:
        rows, count = cast(RowCache, cache), x.shape[1]
        parts = (x @ self._projections).reshape(1, count, 3 * HEADS, WIDTH // HEADS)
        q, k, v = mx.split(parts.transpose(0, 2, 1, 3), 3, axis=1)
        rotate = partial(mx.fast.rope, traditional=False, base=1e4, scale=1.0, offset=rows.offset)
        q, k = (rotate(part, WIDTH // HEADS) for part in (q, k))
        mask = cast(MakesMasks, cache).make_mask(count, return_array=False, window_size=None)
        k, v = rows.update_and_fetch(k, v)
        scale = 1 / math.sqrt(WIDTH // HEADS)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
        return out.transpose(0, 2, 1, 3).reshape(1, count, WIDTH) @ self._output


@final
class ToyRecurrence:
    """A short convolution whose output is added to a decaying state."""

    def __init__(self, seed: int) -> None:
        self._taps = _weights(seed, TAPS + 1, WIDTH)
        self._decay = mx.sigmoid(_weights(seed + 1, 1, WIDTH))

    def __call__(self, x: mx.array, cache: object) -> mx.array:
        return mx.stack(run_recurrence(cache, x, self._next_state), axis=1)

    def _next_state(self, state: mx.array, rows: mx.array) -> mx.array:
        mixed = (rows * self._taps).sum(axis=1)
        return self._decay * state + mixed * mx.sigmoid(mixed)


@final
class ToyModel:
    """A `SpeculativeModel` with random weights whose forward takes milliseconds.

    Args:
        seed: Of the weights. The same seed makes the same model.
        vocab_size: Columns of the logits.
        window: Rows that the sliding layer sees.
        head: A multi-token-prediction head, such as a `ToyHead`.
        eos_token_ids: Ids that end a sequence.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        vocab_size: int = 64,
        window: int = 8,
        head: MTPHead | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.vocab_size: int = vocab_size
        self.eos_token_ids: frozenset[int] = frozenset(eos_token_ids)
        self.head: MTPHead | None = head
        self.vocabulary: Mapping[str, int] | None = None
        self._window = window
        seeds = range(10 * seed, 10 * seed + 9)
        self._embedding = _weights(seeds[0], vocab_size, WIDTH)
        self._full = ToyAttention(seeds[1])
        self._recurrence = ToyRecurrence(seeds[3])
        self._sliding = ToyAttention(seeds[5])
        self._output = _weights(seeds[7], WIDTH, vocab_size)

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        sliding = RewindableRotatingKVCache(self._window, position=position)
        return join([RewindableKVCache(position), RewindableArraysCache(2, position), sliding])

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return adopt(cache)

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] < 1:
            raise OptionError(f"forward takes tokens of shape (1, T), T >= 1, got {tokens.shape}")
        with as_block(cache, tokens) as fed:
            out = self._walk(fed, cache)
        replayed = fed.shape[1] - tokens.shape[1]
        return out.after(replayed)

    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        full, state, sliding = cache
        h = self._embedding[tokens]
        h = h + self._full(_normed(h), full)
        h = h + self._recurrence(_normed(h), state)
        h = h + self._sliding(_normed(h), sliding)
        hidden = _normed(h)
        return Forward(hidden @ self._output, hidden)


@final
class ToyHead:
    """A multi-token-prediction head with random weights and one layer of attention.

    Args:
        seed: Of the weights.
        vocab_size: The target's.
    """

    def __init__(self, seed: int = 0, *, vocab_size: int = 64) -> None:
        seeds = range(10 * seed, 10 * seed + 9)
        self._embedding = _weights(seeds[0], vocab_size, WIDTH)
        self._joint = _weights(seeds[2], 2 * WIDTH, WIDTH)
        self._attention = ToyAttention(seeds[4])
        self._output = _weights(seeds[7], WIDTH, vocab_size)

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return join([RewindableKVCache(position)])

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        if hidden.shape != (*tokens.shape, WIDTH):
            raise OptionError(f"hidden is {hidden.shape} for tokens {tokens.shape}")
        with as_block(cache, tokens) as fed:
            pair = mx.concatenate([_normed(self._embedding[fed]), hidden], axis=-1)
            h = pair @ self._joint
            out = _normed(h + self._attention(_normed(h), cache[0]))
        return Forward(out @ self._output, out)
