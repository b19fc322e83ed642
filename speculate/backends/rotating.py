"""A sliding window, kept in time order, with room to take tokens back.

mlx-lm's own window is a ring: once it has wrapped, a new row overwrites the row that would
be needed again after a rejected draft. Here new rows are appended behind the window, so
taking back moves an index. When the buffer is full the rows that no step can see any more
are dropped, and the rest moves to the front: once in hundreds of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import RotatingKVCache
from typing_extensions import override

from speculate.backends.group import RECORD_WINDOW
from speculate.backends.masks import mask_with_sinks
from speculate.backends.member import AbandonsByCheckpoint, GroupMember
from speculate.backends.rows import STEP, check_trim
from speculate.errors import RewindError


@final
class RewindableRotatingKVCache(AbandonsByCheckpoint, GroupMember, RotatingKVCache):
    """`RotatingKVCache` in time order, whose trim is exact or an error.

    Args:
        max_size: Rows that a single step attends to.
        keep: The first `keep` of the text stay in view for ever (attention sinks).
        slack: Rows kept behind the window while speculating; any draft shorter than this
            can be taken back.
        position: Text position of the first row. Not 0 only in a cache that starts late.
    """

    def __init__(
        self, max_size: int, keep: int = 0, *, slack: int = RECORD_WINDOW, position: int = 0
    ) -> None:
        RotatingKVCache.__init__(self, max_size=max_size, keep=keep)
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = position
        self._slack = slack
        self._position = position
        self._speculating = False
        self._source: RotatingKVCache | None = None

    @classmethod
    def adopt(cls, stock: RotatingKVCache) -> RewindableRotatingKVCache:
        """Move the rows out of `stock`, which `hand_back` refills."""
        cache = cls(stock.max_size, stock.keep)
        if stock.keys is not None:
            cache.keys = stock._temporal_order(stock.keys)
            cache.values = stock._temporal_order(stock.values)
            cache.offset = stock.offset
            cache._idx = cache.keys.shape[2]
        stock.keys, stock.values, stock.offset, stock._idx = None, None, 0, 0
        cache._source = stock
        return cache

    def hand_back(self) -> RotatingKVCache:
        if self._position:
            raise RewindError("a cache that started late has no equal among mlx-lm's caches")
        stock = self._source or RotatingKVCache(max_size=self.max_size, keep=self.keep)
        if self.keys is not None and self.values is not None:
            # Copies: a view would keep the whole buffer alive, and make the next write copy it.
            stock.keys = mx.contiguous(self._view(self.keys, min(self.rows(), self.max_size)))
            stock.values = mx.contiguous(self._view(self.values, min(self.rows(), self.max_size)))
            stock.offset, stock._idx = self.offset, stock.keys.shape[2]
            # Left lazy, they could not be read in another thread.
            mx.eval(stock.keys, stock.values)
        self.keys, self.values, self.offset, self._idx = None, None, 0, 0
        return stock

    def rows(self) -> int:
        """Rows stored, those kept for taking back included."""
        return int(self._idx)

    @override
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        new = keys.shape[2]
        seen = min(self.rows(), self.max_size - 1) + new
        if new > self._room() - self._kept_rows():
            return self._append_long(keys, values, seen)
        buffers = self._with_room(keys, values)
        start, end = self.rows(), self.rows() + new
        self._idx, self.offset = end, self.offset + new
        for buffer, rows in zip(buffers, (keys, values), strict=True):
            buffer[..., start:end, :] = rows
        self.keys, self.values = buffers
        return self._view(buffers[0], seen), self._view(buffers[1], seen)

    def _append_long(
        self, keys: mx.array, values: mx.array, seen: int
    ) -> tuple[mx.array, mx.array]:
        """Take in a block longer than the buffer, as a prefill chunk is, and keep its end."""
        self.offset += keys.shape[2]
        prior = seen - keys.shape[2]
        if self.keys is not None and self.values is not None:
            keys = mx.concatenate([self._view(self.keys, prior), keys], axis=2)
            values = mx.concatenate([self._view(self.values, prior), values], axis=2)
        self._idx = seen
        kept = min(seen, self._kept_rows())
        self.keys = mx.contiguous(self._view(keys, kept))
        self.values = mx.contiguous(self._view(values, kept))
        self._idx = kept
        return keys, values

    def _kept_rows(self) -> int:
        """Rows that must survive: the window, and while speculating what may come back."""
        kept: int = self.max_size + (self._slack if self._speculating else 0)
        return kept

    def _room(self) -> int:
        """Rows of a full buffer: each time it fills up, the window moves to its front."""
        spare = min(max(self.max_size, RECORD_WINDOW), 4 * STEP)
        return int(self.max_size + self._slack + spare)

    def _with_room(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The buffers, grown or rid of the rows that no step can see any more if they are full."""
        needed = self.rows() + keys.shape[2]
        if self.keys is not None and self.values is not None and needed <= self.keys.shape[2]:
            return self.keys, self.values
        count = self.rows() if needed <= self._room() else min(self.rows(), self._kept_rows())
        capacity = min(-(-needed // STEP) * STEP, self._room())
        moved = (
            self._moved(self.keys, keys, count, capacity),
            self._moved(self.values, values, count, capacity),
        )
        self._idx = count
        return moved

    def _moved(
        self, buffer: mx.array | None, like: mx.array, count: int, capacity: int
    ) -> mx.array:
        shape = (like.shape[0], like.shape[1], capacity - count, like.shape[3])
        fresh = mx.zeros(shape, dtype=like.dtype)
        return fresh if buffer is None else mx.concatenate([self._view(buffer, count), fresh], 2)

    def _dropped(self) -> bool:
        """Whether rows of the text are gone for good."""
        return self.offset - self._position > self.rows()

    def _view(self, buffer: mx.array, count: int) -> mx.array:
        """The sinks and the newest rows, `count` together, in time order."""
        end = self.rows()
        if count == end or self.keep == 0:
            return buffer[..., end - count : end, :]
        sinks = min(self.keep, count)
        tail = buffer[..., end - (count - sinks) : end, :]
        return mx.concatenate([buffer[..., :sinks, :], tail], axis=2)

    @override
    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        prior = min(self.rows(), self.max_size - 1)
        window = window_size or self.max_size
        if N == 1:
            hidden = prior + 1 - window
            return mx.arange(prior + 1) >= hidden if window_size and hidden > 0 else None
        if prior + N <= window and not return_array:
            return "causal"
        if self._speculating and self.keep and window == self.max_size:
            return mask_with_sinks(N, prior, window, self.keep)
        mask: mx.array = create_causal_mask(N, prior, window_size=window)
        return mask

    def start_at(self, position: int, /) -> None:
        self._position = self.offset = position

    def length(self) -> int:
        return int(self.offset)

    @override
    def is_trimmable(self) -> bool:
        return self._speculating or not self._dropped() or self.rows() > self.max_size

    def can_trim(self, n: int, /) -> bool:
        floor = self.max_size if self._dropped() else 0
        return n == 0 or 0 < n <= self.rows() - floor

    @override
    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        self._idx -= n
        self.offset -= n
        return n

    def start_speculation(self) -> None:
        self._speculating = True

    def stop_speculation(self) -> None:
        self._speculating = False

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int, int, int, int]:
        return self.keys, self.values, self.offset, self.keep, self.max_size, self._idx

    @state.setter
    def state(self, value: object) -> None:
        raise RewindError("load the state into mlx-lm's RotatingKVCache, and adopt that")

    def checkpoint(self) -> Callable[[], None]:
        # By reference: rows that count are never written again, only rows behind them.
        before = (self.keys, self.values, self.offset, self._idx)

        def go_back() -> None:
            self.keys, self.values, self.offset, self._idx = before

        return go_back

    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]
