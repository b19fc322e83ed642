"""Recurrent state: rolled back by what its layer recorded, or by whole blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

import attrs
import mlx.core as mx
from mlx_lm.models.cache import ArraysCache
from typing_extensions import override

from speculate.backends.base import BaseCache
from speculate.backends.group import RECORD_WINDOW
from speculate.errors import RewindError
from speculate.protocols import DeferredState, Entries

Content = list[mx.array | None] | DeferredState
"""The content of a state cache: its entries, or a rewind from which they can be computed."""


def shallow_copy(content: Entries | DeferredState) -> Content:
    """Return the same content in a list of its own, unaffected by later writes to the cache."""
    return content if isinstance(content, DeferredState) else list(content)


@attrs.frozen(eq=False)
class Record:
    """How to roll back the tokens of one block."""

    num_tokens: int
    # Returns the entries after the first `m` tokens. Without it only the whole block is undone.
    state_after: Callable[[int], Entries] | None
    snapshot: Content  # before the block


@final
class RollbackLog(deque[Record]):
    """Records of the last blocks: as many as cover the last `RECORD_WINDOW` tokens."""

    def add(self, record: Record) -> None:
        """Append the last block's record, and drop records that are no longer needed."""
        self.append(record)
        tokens = self.tokens()
        while tokens - self[0].num_tokens >= RECORD_WINDOW:
            tokens -= self.popleft().num_tokens

    def last(self) -> Record | None:
        """Return the last block's record, if there is one."""
        return self[-1] if self else None

    def tokens(self) -> int:
        """Return the number of recorded tokens."""
        return sum(block.num_tokens for block in self)

    def drop_after(self, last: Record | None) -> None:
        """Drop the records added after `last`; all of them if `last` is `None`."""
        while self and self[-1] is not last:
            self.pop()

    def can_rewind(self, n: int) -> bool:
        """Return whether exactly the last `n` tokens can be rolled back, `n >= 1`."""
        for block in reversed(self):
            if n < block.num_tokens:
                return block.state_after is not None
            n -= block.num_tokens
            if n == 0:
                return True
        return False

    def rewind(self, n: int) -> Content:
        """Drop the last `n` tokens, which `can_rewind` allows, and return the content before them.

        The rest of a partly dropped block stays recorded.
        """
        while True:
            block = self.pop()
            left = block.num_tokens - n
            if left > 0 and block.state_after is not None:
                self.append(Record(left, block.state_after, block.snapshot))
                return DeferredState(block.state_after, left)
            if left >= 0:
                return shallow_copy(block.snapshot)
            n = -left


@final
class RewindableArraysCache(BaseCache, ArraysCache):
    """`ArraysCache` that rolls back by what its layer recorded.

    A layer that knows its recurrence calls `record_rollback`, and can be rewound to any token.
    For any other layer the entries before a block are kept by reference (a layer replaces
    entries and never writes into one), so that whole blocks can be rolled back.

    A rewind into a block is deferred: it is carried out when the entries are read, unless the
    layer that recorded the block continues from the deferred rewind.

    Args:
        size: Number of entries.
        length: Tokens that the state has consumed already.
    """

    batch_size: int = 1
    """Number of sequences. mlx-lm's reads the entries, which would carry out a deferred rewind."""
    _content: Content

    def __init__(self, size: int, length: int = 0) -> None:
        ArraysCache.__init__(self, size)
        self._length = length
        self._log = RollbackLog()
        self._unrecorded = False
        # Length, content and last record when the present forward began.
        self._open: tuple[int, Content, Record | None] | None = None
        self._source: ArraysCache | None = None

    @classmethod
    def adopt(cls, stock: ArraysCache, length: int = 0, /) -> RewindableArraysCache:
        """Move the entries out of `stock`, which `release` refills."""
        cache = cls(len(stock.cache), length)
        cache.cache = [*stock.cache]
        stock.cache = [None] * len(stock.cache)
        cache._source = stock
        return cache

    def move_out(self) -> ArraysCache:
        entries = self.entries()
        stock = self._source or ArraysCache(len(entries))
        stock.state = (entries, None, None)
        self.cache = [None] * len(entries)
        self.stop_speculation()
        return stock

    @property  # type: ignore[override]  # mlx-lm's is inferred too narrow
    def cache(self) -> list[mx.array | None]:
        """The entries. Reading them carries out a deferred rewind."""
        if isinstance(self._content, DeferredState):
            self._content = list(self._content.entries())
        return self._content

    @cache.setter
    def cache(self, entries: list[mx.array | None]) -> None:
        self._content = entries

    def entries(self) -> list[mx.array | None]:
        """Return the present entries, by reference."""
        return list(self.cache)

    # Called by layers and adapters.

    @override
    def __setitem__(self, idx: int, value: mx.array | None) -> None:
        self.cache[idx] = value
        self._unrecorded = self._speculating

    def replace(self, entries: Entries, /) -> None:
        self._content = list(entries)
        self._unrecorded = self._speculating

    @override
    def advance(self, N: int) -> None:
        ArraysCache.advance(self, N)
        self._length += N

    def deferred(self) -> DeferredState | None:
        return self._content if isinstance(self._content, DeferredState) else None

    def recording(self) -> bool:
        return self._speculating

    def record_rollback(
        self,
        num_tokens: int,
        restore: Callable[[int], Entries] | None,
        snapshot: Entries | DeferredState,
        /,
    ) -> None:
        if self._speculating:
            self._log.add(Record(num_tokens, restore, shallow_copy(snapshot)))
            self._unrecorded = False

    @override
    def begin_block(self) -> None:
        if self._unrecorded:
            # A write without a record hides the older ones: they cannot be rewound to any more.
            self._log.clear()
        self._unrecorded = False
        self._open = self._length, shallow_copy(self._content), self._log.last()

    @override
    def commit_block(self, num_tokens: int, /) -> None:
        if self._open is None:
            raise RewindError("commit_block without begin_block")
        length, content, _ = self._open
        if self._unrecorded:
            self.record_rollback(num_tokens, None, content)
        # Not every layer calls `advance`.
        self._length = length + num_tokens
        self._open = None

    @override
    def abort_block(self) -> None:
        if self._open is None:
            return
        self._length, self._content, last = self._open
        self._log.drop_after(last)
        self._unrecorded = False
        self._open = None

    # Rollback.

    @override
    def start_at(self, position: int, /) -> None:
        self._length = position

    def length(self) -> int:
        return self._length

    @override
    def is_trimmable(self) -> bool:
        return self._speculating

    def can_trim(self, n: int, /) -> bool:
        if n <= 0 or self._unrecorded:
            return n == 0
        return self._log.can_rewind(n)

    def trim_rows(self, n: int, /) -> None:
        self._content = self._log.rewind(n)
        self._length -= n

    @override
    def start_speculation(self) -> None:
        self.stop_speculation()
        self._speculating = True

    @override
    def stop_speculation(self) -> None:
        self._speculating = self._unrecorded = False
        self._log.clear()

    def checkpoint(self) -> Callable[[], None]:
        length, content = self._length, shallow_copy(self._content)

        def restore() -> None:
            self._log.clear()
            self._unrecorded = False
            self._content, self._length = shallow_copy(content), length

        return restore

    def arrays(self) -> list[mx.array]:
        return [entry for entry in self.cache if entry is not None]

    @override
    def _described(self) -> list[str]:
        written = "deferred rewind" if isinstance(self._content, DeferredState) else "entries"
        size = "" if isinstance(self._content, DeferredState) else f"{len(self._content)} "
        recorded = [f"{self._log.tokens()} tokens recorded"] if self._speculating else []
        return [*super()._described(), f"{size}{written}", *recorded]
