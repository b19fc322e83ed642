"""Masks of a sliding window that is kept in time order."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import RotatingKVCache
from typing_extensions import override

from speculate.backends.base import STEP, check_trim
from speculate.backends.group import RECORD_WINDOW, AbandonsByCheckpoint, GroupMember
from speculate.errors import RewindError


def mask_of_one(prior: int, window: int) -> mx.array | None:
    """What a single row sees: needed only by a layer that sees less than its cache shows.

    Args:
        prior: Rows in front of it.
        window: Rows that it sees, itself included.

    Returns:
        `(prior + 1,)`, true where it sees a column; `None` where it sees all.
    """
    hidden = prior + 1 - window
    return mx.arange(prior + 1) >= hidden if hidden > 0 else None


def mask_of_block(
    rows: int, prior: int, window: int, sinks: int, *, as_array: bool
) -> mx.array | str:
    """What the rows of a block see, as in mlx-lm, and besides it the sinks.

    Args:
        rows: Rows of the block.
        prior: Rows in front of it.
        window: Rows that a single step sees.
        sinks: First rows that are always seen.
        as_array: Whether the name of a mask will not do.
    """
    if prior + rows <= window and not as_array:
        return "causal"
    if sinks:
        return mask_with_sinks(rows, prior, window, sinks)
    mask: mx.array = create_causal_mask(rows, prior, window_size=window)
    return mask


def mask_with_sinks(rows: int, prior: int, window: int, sinks: int) -> mx.array:
    """What single steps see. mlx-lm's mask for blocks lets the sinks slide out of view.

    Args:
        rows: Rows of the block.
        prior: Rows in front of it, the sinks first.
        window: Rows that a single step sees, itself and the sinks included.
        sinks: Rows that are always seen.

    Returns:
        `(rows, prior + rows)`, true where a row sees a column.
    """
    row = mx.arange(prior, prior + rows)[:, None]
    column = mx.arange(prior + rows)[None]
    recent = row < column + (window - sinks)
    mask: mx.array = (column <= row) & (recent | (column < sinks))
    return mask


@final
class Sinks:
    """Where the sinks lie in one buffer `(1, heads, rows, width)`, and what they cover.

    Args:
        window: Rows that a single step sees.
        keep: How many of them are the first of the text.
        room: Most rows of the buffer.
    """

    def __init__(self, window: int, keep: int, room: int) -> None:
        self._window = window
        self._keep = min(keep, window - 1)
        self._room = self._first_seen(room) + 1
        self._at = 0  # the row where the sinks lie
        self._sinks: mx.array | None = None  # a copy of them
        self._covered: mx.array | None = None  # row i is a copy of the buffer's row keep + i
        self._saved = 0  # rows of it that count

    def make(self, rows: mx.array, free: int) -> mx.array:
        """A new buffer, for this object to look after from now on.

        Args:
            rows: `(1, heads, n, width)`, in time order: the sinks, if `n` is more than a
                window, and the newest.
            free: Rows to be written behind them.
        """
        fresh = _zeros(rows, free)
        start = self._first_seen(rows.shape[2])
        if self._keep == 0 or start == 0:
            return mx.concatenate([rows, fresh], axis=2)
        self._at = self._saved = start
        self._sinks = mx.contiguous(rows[..., : self._keep, :])
        covered = rows[..., self._keep : self._keep + start, :]
        self._covered = mx.concatenate([covered, _zeros(rows, self._room - start)], axis=2)
        newest = rows[..., self._keep + start :, :]
        return mx.concatenate([rows[..., :start, :], self._sinks, newest, fresh], axis=2)

    def append(self, buffer: mx.array, new: mx.array, rows: int) -> mx.array:
        """Write rows behind those that count, in place.

        Args:
            buffer: Has room for them.
            new: `(1, heads, T, width)`.
            rows: Rows of the buffer that count.

        Returns:
            What the new rows see: the window of the first of them, and themselves.
        """
        end, first = rows + new.shape[2], self._first_seen(rows)
        if self._keep:
            self._lay(buffer, first, rows)
        buffer[..., rows:end, :] = new
        if self._keep:
            # For the next step: if a buffer is read before it is written to in one
            # evaluation, MLX copies all of it.
            self._save(buffer, self._first_seen(end))
        seen, copies = buffer[..., first:end, :], self.arrays()
        # Evaluated with this step even where nothing but the model's output is asked for.
        return mx.depends([seen], copies)[0] if copies else seen

    def newest(self, buffer: mx.array, rows: int, count: int) -> mx.array:
        """The sinks and the newest rows, `count` of the first `rows` together, in time order."""
        start = rows - count
        if self._keep and start > max(self._at, self._saved):
            sinks = buffer[..., self._at : self._at + self._keep, :]
            return mx.concatenate([sinks, buffer[..., start + self._keep : rows, :]], axis=2)
        if self._keep:
            self._lay(buffer, start, rows)
        return buffer[..., start:rows, :]

    def arrays(self) -> list[mx.array]:
        """The copies that are kept."""
        return [copy for copy in (self._sinks, self._covered) if copy is not None]

    def _first_seen(self, rows: int) -> int:
        """Where the stretch begins that the next row sees, behind `rows` others."""
        return max(0, rows + 1 - self._window)

    def _lay(self, buffer: mx.array, start: int, rows: int) -> None:
        """Make the stretch from `start` on begin with the sinks, and go on as the text does."""
        # What was copied from behind `rows` was taken back.
        self._saved = min(self._saved, max(0, rows - self._keep))
        self._save(buffer, start)
        if start == self._at or self._sinks is None or self._covered is None:
            return
        again = self._sinks
        if start < self._at:
            again = mx.concatenate([again, self._covered[..., start : self._at, :]], axis=2)
        end = start + again.shape[2]
        # In one line: no interrupt comes between what is written and where it is.
        buffer[..., start:end, :], self._at = again, start

    def _save(self, buffer: mx.array, start: int) -> None:
        """Copy the rows that the sinks cover once they are laid from `start` on."""
        if start <= self._saved:
            return
        if self._at == 0:
            self._sinks = mx.contiguous(buffer[..., : self._keep, :])
        if self._covered is None:
            self._covered = _zeros(buffer, self._room)
        rows = buffer[..., self._saved + self._keep : start + self._keep, :]
        self._covered[..., self._saved : start, :] = rows
        self._saved = start


def _zeros(like: mx.array, rows: int) -> mx.array:
    return mx.zeros((*like.shape[:2], rows, like.shape[3]), dtype=like.dtype)


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
