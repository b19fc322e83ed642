"""A model that is tiny, deterministic, and of every kind: attention, recurrence, and a window.

Attention feeds the recurrence, and that feeds a sliding window: a mistake in any cache reaches
the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import final

import mlx.core as mx

from speculate.backends.adopt import adopt
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import OptionError
from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing.toy_layers import WIDTH, Attention, Recurrence, normed, weights


@final
class ToyModel:
    """A `SpeculativeModel` with random weights, which takes milliseconds to run.

    Args:
        seed: Of the weights. The same seed makes the same model.
        vocab_size: Columns of the logits.
        window: Rows that the sliding layer sees.
        head: A head, a `ToyHead` for example.
        eos_token_ids: Ids that end a text.
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
        self._vocab_size = vocab_size
        self._window = window
        self._head = head
        self._eos = frozenset(eos_token_ids)
        seeds = range(10 * seed, 10 * seed + 9)
        self._embedding = weights(seeds[0], vocab_size, WIDTH)
        self._full = Attention(seeds[1])
        self._recurrence = Recurrence(seeds[3])
        self._sliding = Attention(seeds[5])
        self._output = weights(seeds[7], WIDTH, vocab_size)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._eos

    @property
    def head(self) -> MTPHead | None:
        return self._head

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return None

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        caches: list[Rollbackable] = [
            RewindableKVCache(position),
            RewindableArraysCache(2, position),
            RewindableRotatingKVCache(self._window, position=position),
        ]
        return join(caches)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return adopt(cache)

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] < 1:
            raise OptionError(f"forward takes tokens of shape (1, T), T >= 1, got {tokens.shape}")
        group = group_of(cache)
        if group is None:
            return self._walk(tokens, cache)
        with group.block(tokens) as fed:
            out = self._walk(fed, cache)
        extra = fed.shape[1] - tokens.shape[1]
        return Forward(out.logits[:, extra:], out.hidden[:, extra:])

    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        full, state, sliding = cache
        h = self._embedding[tokens]
        h = h + self._full(normed(h), full)
        h = h + self._recurrence(normed(h), state)
        h = h + self._sliding(normed(h), sliding)
        hidden = normed(h)
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
        self._embedding = weights(seeds[0], vocab_size, WIDTH)
        self._joint = weights(seeds[2], 2 * WIDTH, WIDTH)
        self._attention = Attention(seeds[4])
        self._output = weights(seeds[7], WIDTH, vocab_size)

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        caches: list[Rollbackable] = [RewindableKVCache(position)]
        return join(caches)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        if hidden.shape != (*tokens.shape, WIDTH):
            raise OptionError(f"hidden is {hidden.shape} for tokens {tokens.shape}")
        group = group_of(cache)
        with nullcontext(tokens) if group is None else group.block(tokens) as fed:
            pair = mx.concatenate([normed(self._embedding[fed]), hidden], axis=-1)
            h = pair @ self._joint
            out = normed(h + self._attention(normed(h), cache[0]))
        return Forward(out @ self._output, out)
