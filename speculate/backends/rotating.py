"""Sliding window: rows in time order, so that a trim is exact; attention sinks and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import RotatingKVCache
from typing_extensions import override

from speculate.backends.base import STEP, BaseCache
from speculate.backends.group import RECORD_WINDOW


def mask_with_sinks(rows: int, prior: int, window: int, sinks: int) -> mx.array:
    """Return the mask of a block of `rows` in which each row sees what a single step would see.

    That is `window` rows, itself and the sinks included: the first `sinks` of the `prior` rows are
    always visible. mlx-lm's mask for blocks lets them slide out of view.

    Returns:
        `(rows, prior + rows)` booleans, true where a row sees a column.
    """
    row = mx.arange(prior, prior + rows)[:, None]
    column = mx.arange(prior + rows)[None]
    recent = row < column + (window - sinks)
    mask: mx.array = (column <= row) & (recent | (column < sinks))
    return mask


@final
class Sinks:
    """The attention sinks in one buffer `(1, heads, rows, width)`, and the rows they overwrite.

    A step sees the sinks and the last rows. Both must be contiguous, so the sinks are copied to
    just before the last rows, and the rows that this overwrites are preserved for a rewind. A step
    sees `window` rows, the first `keep` of the sequence among them.
    """

    def __init__(self, window: int, keep: int, capacity: int) -> None:
        self._window = window
        self._keep = min(keep, window - 1)
        self._capacity = self._first_visible(capacity) + 1
        self._at = 0  # the row where the sinks start
        self._sinks: mx.array | None = None  # a copy of them
        self._overwritten: mx.array | None = None  # row i: a copy of the buffer's row keep + i
        self._preserved = 0  # valid rows of it

    def rebuild(self, rows: mx.array, free: int) -> mx.array:
        """Return a new buffer `(1, heads, n + free, width)`, managed by this object from now on.

        It begins with `rows`, `(1, heads, n, width)`, in time order: the sinks, if `n` is more than
        a window, and the last rows.
        """
        fresh = _zeros(rows, free)
        start = self._first_visible(rows.shape[2])
        if self._keep == 0 or start == 0:
            return mx.concatenate([rows, fresh], axis=2)
        self._at = self._preserved = start
        self._sinks = mx.contiguous(rows[..., : self._keep, :])
        overwritten = rows[..., self._keep : self._keep + start, :]
        spare = _zeros(rows, self._capacity - start)
        self._overwritten = mx.concatenate([overwritten, spare], axis=2)
        last = rows[..., self._keep + start :, :]
        return mx.concatenate([rows[..., :start, :], self._sinks, last, fresh], axis=2)

    def append(self, buffer: mx.array, new: mx.array, rows: int) -> mx.array:
        """Write `new`, `(1, heads, T, width)`, after the valid `rows` of a buffer that has room.

        Returns:
            The rows that the new rows see: the window of the first of them, and themselves.
        """
        end, first = rows + new.shape[2], self._first_visible(rows)
        if self._keep:
            self._place(buffer, first, rows)
        buffer[..., rows:end, :] = new
        if self._keep:
            # For the next step: if a buffer is read before it is written to in one
            # evaluation, MLX copies all of it.
            self._preserve(buffer, self._first_visible(end))
        seen, copies = buffer[..., first:end, :], self.arrays()
        # Ties the copies to the output, so that evaluating the output evaluates them as well.
        return mx.depends([seen], copies)[0] if copies else seen

    def window(self, buffer: mx.array, rows: int, count: int) -> mx.array:
        """Return the sinks and the last of the first `rows` rows, `count` in all, in time order."""
        start = rows - count
        if self._keep and start > max(self._at, self._preserved):
            sinks = buffer[..., self._at : self._at + self._keep, :]
            return mx.concatenate([sinks, buffer[..., start + self._keep : rows, :]], axis=2)
        if self._keep:
            self._place(buffer, start, rows)
        return buffer[..., start:rows, :]

    def arrays(self) -> list[mx.array]:
        """Return the copies that are held."""
        return [copy for copy in (self._sinks, self._overwritten) if copy is not None]

    def _first_visible(self, rows: int) -> int:
        """Return the first row that the next row sees, after `rows` others."""
        return max(0, rows + 1 - self._window)

    def _place(self, buffer: mx.array, start: int, rows: int) -> None:
        """Move the sinks to `start`, and restore the rows they leave."""
        # Copies of rows after `rows` are stale, because those rows were trimmed.
        self._preserved = min(self._preserved, max(0, rows - self._keep))
        self._preserve(buffer, start)
        if start == self._at or self._sinks is None or self._overwritten is None:
            return
        moved = self._sinks
        if start < self._at:
            moved = mx.concatenate([moved, self._overwritten[..., start : self._at, :]], axis=2)
        end = start + moved.shape[2]
        # In one line: no interrupt comes between what is written and where it is.
        buffer[..., start:end, :], self._at = moved, start

    def _preserve(self, buffer: mx.array, start: int) -> None:
        """Copy the rows that the sinks overwrite when they are placed at `start`."""
        if start <= self._preserved:
            return
        if self._at == 0:
            self._sinks = mx.contiguous(buffer[..., : self._keep, :])
        if self._overwritten is None:
            self._overwritten = _zeros(buffer, self._capacity)
        rows = buffer[..., self._preserved + self._keep : start + self._keep, :]
        self._overwritten[..., self._preserved : start, :] = rows
        self._preserved = start


def _zeros(like: mx.array, rows: int) -> mx.array:
    return mx.zeros((*like.shape[:2], rows, like.shape[3]), dtype=like.dtype)


@final
class RewindableRotatingKVCache(BaseCache, RotatingKVCache):
    """`RotatingKVCache` in time order, whose trim is exact or an error.

    Args:
        max_size: Rows that a single step attends to.
        keep: The first `keep` rows of the sequence stay visible for ever (attention sinks).
        slack: Rows kept beyond the window while speculating; any draft shorter than this can be
            trimmed.
        position: Position of the first row in the sequence. Not 0 only in a cache that starts
            late.
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
        self._sinks = self._new_sinks()
        self._source: RotatingKVCache | None = None

    @classmethod
    def adopt(cls, stock: RotatingKVCache, length: int = 0, /) -> RewindableRotatingKVCache:
        """Move the rows out of `stock`, which `release` refills."""
        cache = cls(stock.max_size, stock.keep)
        if stock.keys is not None:
            keys, values = stock._temporal_order(stock.keys), stock._temporal_order(stock.values)
            cache.keys, cache.values = keys, values
            cache.offset, cache._idx = stock.offset, keys.shape[2]
        stock.keys, stock.values, stock.offset, stock._idx = None, None, 0, 0
        cache._source = stock
        return cache

    def move_out(self) -> RotatingKVCache:
        stock = self._source or RotatingKVCache(max_size=self.max_size, keep=self.keep)
        window = self.window(min(self.rows(), self.max_size))
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
        """Return the number of rows stored, those kept for a rollback included."""
        return int(self._idx)

    @override
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        new = keys.shape[2]
        if new > self._capacity() - self._kept_rows():
            return self._append_long(keys, values)
        self.keys, self.values = self._with_room(keys, values)
        keys = self._sinks[0].append(self.keys, keys, self.rows())
        values = self._sinks[1].append(self.values, values, self.rows())
        self._idx, self.offset = self.rows() + new, self.offset + new
        return keys, values

    def _append_long(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append a block longer than the buffer, as a prefill chunk is, and keep its end."""
        self.offset += keys.shape[2]
        prior = self.window(min(self.rows(), self.max_size - 1))
        if prior is not None:
            keys = mx.concatenate([prior[0], keys], axis=2)
            values = mx.concatenate([prior[1], values], axis=2)
        total = keys.shape[2]
        count, self._sinks = min(total, self._kept_rows()), self._new_sinks()
        self.keys = mx.contiguous(self._sinks[0].window(keys, total, count))
        self.values = mx.contiguous(self._sinks[1].window(values, total, count))
        self._idx = count
        return keys, values

    def _new_sinks(self) -> tuple[Sinks, Sinks]:
        size = self.max_size, self.keep, self._capacity()
        return Sinks(*size), Sinks(*size)

    def _kept_rows(self) -> int:
        """Return the rows to keep: the window and, while speculating, those a trim may need."""
        return int(self.max_size + (self._slack if self._speculating else 0))

    def _capacity(self) -> int:
        """Return the rows of a full buffer: when it is full, the window moves to its start."""
        spare = min(max(self.max_size, RECORD_WINDOW), STEP if self.keep else 4 * STEP)
        return int(self.max_size + self._slack + spare)

    def _with_room(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Return buffers with room for `keys`: grown, or, if full, without rows no step can see."""
        needed = self.rows() + keys.shape[2]
        if self.keys is not None and self.values is not None and needed <= self.keys.shape[2]:
            return self.keys, self.values
        count = min(self.rows(), self._kept_rows())
        capacity = self._capacity() if count < self.rows() else -(-needed // STEP) * STEP
        free = min(capacity, self._capacity()) - count
        kept = self.window(count) or (keys[..., :0, :], values[..., :0, :])
        self._idx, self._sinks = count, self._new_sinks()
        return self._sinks[0].rebuild(kept[0], free), self._sinks[1].rebuild(kept[1], free)

    def _dropped(self) -> bool:
        """Return whether rows of the sequence were dropped."""
        return self.offset - self._position > self.rows()

    def window(self, count: int) -> tuple[mx.array, mx.array] | None:
        """Return keys and values of the sinks and the last rows, `count` in all, in time order."""
        if self.keys is None or self.values is None:
            return None
        (keys, values), rows = self._sinks, self.rows()
        return keys.window(self.keys, rows, count), values.window(self.values, rows, count)

    @override
    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        prior = min(self.rows(), self.max_size - 1)
        window = window_size or self.max_size
        if N == 1:
            # A layer's window may be smaller than its cache's.
            hidden = prior + 1 - window
            return mx.arange(prior + 1) >= hidden if hidden > 0 else None
        if prior + N <= window and not return_array:
            return "causal"
        if self.keep and self._speculating and window == self.max_size:
            return mask_with_sinks(N, prior, window, self.keep)
        mask: mx.array = create_causal_mask(N, prior, window_size=window)
        return mask

    @override
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

    def trim_rows(self, n: int, /) -> None:
        self._idx -= n
        self.offset -= n

    def checkpoint(self) -> Callable[[], None]:
        # By reference: valid rows are never written again, only rows after them. The rows that
        # sinks overwrite are preserved.
        before = (self.keys, self.values, self.offset, self._idx, self._sinks)

        def restore() -> None:
            self.keys, self.values, self.offset, self._idx, self._sinks = before

        return restore

    def arrays(self) -> list[mx.array]:
        if self.keys is None or self.values is None:
            return []
        copies = [copy for sinks in self._sinks for copy in sinks.arrays()]
        return [self.keys, self.values, *copies]

    @override
    def _described(self) -> list[str]:
        capacity = "" if self.keys is None else f" of {self.keys.shape[2]}"
        sinks = [f"{self.keep} sinks"] if self.keep else []
        rows = f"{self.rows()}{capacity} rows"
        return [*super()._described(), f"window {self.max_size}", *sinks, rows]
