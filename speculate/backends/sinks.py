"""What a sliding window shows of a buffer: the first rows of the text, and the newest ones.

A step sees one stretch of the buffer. With attention sinks the first rows of the text lie right
in front of the newest ones, and move along: when the window has moved on they are written again,
over rows that no step sees any more. A rewind may need those, so a copy is kept.
"""

from __future__ import annotations

from typing import final

import mlx.core as mx


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
