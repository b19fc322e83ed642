"""A sliding window, kept in time order, with room to take tokens back.

mlx-lm's own window is a ring: once it has wrapped, a new row overwrites the row that would be
needed again after a rejected draft. Here new rows are appended behind the window, so taking
back moves an index. When the buffer is full the rows that no step can see any more are
dropped, and the rest moves to a new one: once in hundreds of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache
from typing_extensions import override

from speculate.backends.group import RECORD_WINDOW
from speculate.backends.masks import mask_of_block, mask_of_one
from speculate.backends.member import AbandonsByCheckpoint, GroupMember
from speculate.backends.rows import STEP, check_trim
from speculate.backends.sinks import Sinks
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
        self.offset: int = position
        self._slack = slack
        self._position = position
        self._speculating = False
        self._sinks = self._new_sinks()
        self._source: RotatingKVCache | None = None

    @classmethod
    def adopt(cls, stock: RotatingKVCache) -> RewindableRotatingKVCache:
        """Move the rows out of `stock`, which `hand_back` refills."""
        cache = cls(stock.max_size, stock.keep)
        if stock.keys is not None:
            keys, values = stock._temporal_order(stock.keys), stock._temporal_order(stock.values)
            cache.keys, cache.values = keys, values
            cache.offset, cache._idx = stock.offset, keys.shape[2]
        stock.keys, stock.values, stock.offset, stock._idx = None, None, 0, 0
        cache._source = stock
        return cache

    def hand_back(self) -> RotatingKVCache:
        self.refuse_while_owing()
        if self._position:
            raise RewindError("a cache that started late has no equal among mlx-lm's caches")
        stock = self._source or RotatingKVCache(max_size=self.max_size, keep=self.keep)
        window = self.newest(min(self.rows(), self.max_size))
        if window is not None:
            # Copies: a view would keep the whole buffer alive, and make the next write copy it.
            keys, values = (mx.contiguous(rows) for rows in window)
            # Left lazy, they could not be read in another thread.
            mx.eval(keys, values)
            moved = (keys, values, self.offset, self.keep, self.max_size, keys.shape[2])
            stock.state = moved
        self.keys, self.values, self.offset, self._idx = None, None, 0, 0
        self._sinks = self._new_sinks()
        return stock

    def rows(self) -> int:
        """Rows stored, those kept for taking back included."""
        return int(self._idx)

    @override
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        new = keys.shape[2]
        if new > self._room() - self._kept_rows():
            return self._append_long(keys, values)
        self.keys, self.values = self._with_room(keys, values)
        keys = self._sinks[0].append(self.keys, keys, self.rows())
        values = self._sinks[1].append(self.values, values, self.rows())
        self._idx, self.offset = self.rows() + new, self.offset + new
        return keys, values

    def _append_long(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take in a block longer than the buffer, as a prefill chunk is, and keep its end."""
        self.offset += keys.shape[2]
        prior = self.newest(min(self.rows(), self.max_size - 1))
        if prior is not None:
            keys = mx.concatenate([prior[0], keys], axis=2)
            values = mx.concatenate([prior[1], values], axis=2)
        total = keys.shape[2]
        count, self._sinks = min(total, self._kept_rows()), self._new_sinks()
        self.keys = mx.contiguous(self._sinks[0].newest(keys, total, count))
        self.values = mx.contiguous(self._sinks[1].newest(values, total, count))
        self._idx = count
        return keys, values

    def _new_sinks(self) -> tuple[Sinks, Sinks]:
        size = self.max_size, self.keep, self._room()
        return Sinks(*size), Sinks(*size)

    def _kept_rows(self) -> int:
        """Rows that must survive: the window, and while speculating what may come back."""
        return int(self.max_size + (self._slack if self._speculating else 0))

    def _room(self) -> int:
        """Rows of a full buffer: each time it fills up, the window moves to its front."""
        spare = min(max(self.max_size, RECORD_WINDOW), STEP if self.keep else 4 * STEP)
        return int(self.max_size + self._slack + spare)

    def _with_room(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The buffers, grown or rid of the rows that no step can see any more if they are full."""
        needed = self.rows() + keys.shape[2]
        if self.keys is not None and self.values is not None and needed <= self.keys.shape[2]:
            return self.keys, self.values
        count = min(self.rows(), self._kept_rows())
        capacity = self._room() if count < self.rows() else -(-needed // STEP) * STEP
        free = min(capacity, self._room()) - count
        kept = self.newest(count) or (keys[..., :0, :], values[..., :0, :])
        self._idx, self._sinks = count, self._new_sinks()
        return self._sinks[0].make(kept[0], free), self._sinks[1].make(kept[1], free)

    def _dropped(self) -> bool:
        """Whether rows of the text are gone for good."""
        return self.offset - self._position > self.rows()

    def newest(self, count: int) -> tuple[mx.array, mx.array] | None:
        """The sinks and the newest rows, `count` together, in time order; `None` if empty."""
        if self.keys is None or self.values is None:
            return None
        (keys, values), rows = self._sinks, self.rows()
        return keys.newest(self.keys, rows, count), values.newest(self.values, rows, count)

    @override
    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        prior = min(self.rows(), self.max_size - 1)
        window = window_size or self.max_size
        if N == 1:
            return mask_of_one(prior, window)
        shown = self.keep if self._speculating and window == self.max_size else 0
        return mask_of_block(N, prior, window, shown, as_array=return_array)

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

    def checkpoint(self) -> Callable[[], None]:
        # By reference: rows that count are never written again, only rows behind them. What
        # sinks are laid over can be had back.
        before = (self.keys, self.values, self.offset, self._idx, self._sinks)

        def go_back() -> None:
            self.keys, self.values, self.offset, self._idx, self._sinks = before

        return go_back

    def arrays(self) -> list[mx.array]:
        if self.keys is None or self.values is None:
            return []
        copies = [copy for sinks in self._sinks for copy in sinks.arrays()]
        return [self.keys, self.values, *copies]
