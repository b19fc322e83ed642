"""Recurrent state: no token axis to cut, so each layer records how to get back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

import attrs
import mlx.core as mx
from mlx_lm.models.cache import ArraysCache
from typing_extensions import override

from speculate.backends.group import RECORD_WINDOW
from speculate.backends.member import GroupMember
from speculate.backends.rows import check_trim
from speculate.errors import RewindError
from speculate.protocols import Entries


@attrs.frozen(eq=False)
class Record:
    """How to take back the tokens of one block.

    Attributes:
        num_tokens: Tokens of the block.
        restore: Entries after its first `m` tokens; `None` where only the whole block
            can be taken back.
        snapshot: Entries before it, by reference.
    """

    num_tokens: int
    restore: Callable[[int], Entries] | None
    snapshot: Entries


@attrs.frozen(eq=False)
class Before:
    """What a cache was like when a forward began.

    Attributes:
        length: Tokens fed.
        entries: By reference.
        newest: The newest record.
    """

    length: int
    entries: list[mx.array | None]
    newest: Record | None


@final
class RewindableArraysCache(GroupMember, ArraysCache):
    """`ArraysCache` that goes back by what its layer recorded.

    A layer that knows its recurrence calls `record_rollback`, and can be cut at any token.
    For any other layer the entries before a block are kept by reference (a layer replaces
    entries and never writes into one), so that whole blocks can be taken back.

    Args:
        size: Number of entries.
        length: Tokens that the state stands for already.
    """

    cache: list[mx.array | None]  # type: ignore[assignment]  # mlx-lm's is inferred too narrow

    def __init__(self, size: int, length: int = 0) -> None:
        ArraysCache.__init__(self, size)
        self._length = length
        self._records: deque[Record] = deque()
        self._speculating = False
        self._unrecorded = False
        self._open: Before | None = None
        self._source: ArraysCache | None = None

    @classmethod
    def adopt(cls, stock: ArraysCache, length: int = 0) -> RewindableArraysCache:
        """Move the entries out of `stock`, which `hand_back` refills."""
        cache = cls(len(stock.cache), length)
        cache.cache = [*stock.cache]
        stock.cache = [None] * len(stock.cache)
        cache._source = stock
        return cache

    def hand_back(self) -> ArraysCache:
        stock = self._source or ArraysCache(len(self.cache))
        stock.state = (list(self.cache), None, None)
        self.cache = [None] * len(self.cache)
        self.stop_speculation()
        return stock

    def entries(self) -> list[mx.array | None]:
        """The entries now, by reference."""
        return list(self.cache)

    @override
    def __setitem__(self, idx: int, value: mx.array | None) -> None:
        self.cache[idx] = value
        self._unrecorded = self._speculating

    @override
    def advance(self, N: int) -> None:
        ArraysCache.advance(self, N)
        self._length += N

    # What layers and adapters call.

    def recording(self) -> bool:
        return self._speculating

    def record_rollback(
        self, num_tokens: int, restore: Callable[[int], Entries] | None, snapshot: Entries, /
    ) -> None:
        if not self._speculating:
            return
        self._records.append(Record(num_tokens, restore, list(snapshot)))
        self._unrecorded = False
        recorded = sum(record.num_tokens for record in self._records)
        while recorded - self._records[0].num_tokens >= RECORD_WINDOW:
            recorded -= self._records.popleft().num_tokens

    def open_block(self) -> None:
        if self._unrecorded:
            # Somebody wrote without a record: what was recorded before is out of reach.
            self._records.clear()
        self._unrecorded = False
        newest = self._records[-1] if self._records else None
        self._open = Before(self._length, self.entries(), newest)

    def close_block(self, num_tokens: int, /) -> None:
        if self._open is None:
            raise RewindError("close_block without open_block")
        if self._unrecorded:
            self.record_rollback(num_tokens, None, self._open.entries)
        # Not every layer calls `advance`.
        self._length = self._open.length + num_tokens
        self._open = None

    def abandon_block(self) -> None:
        if self._open is None:
            return
        self.cache, self._length = self._open.entries, self._open.length
        while self._records and self._records[-1] is not self._open.newest:
            self._records.pop()
        self._unrecorded = False
        self._open = None

    # What takes tokens back.

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
        for record in reversed(self._records):
            if n < record.num_tokens:
                return record.restore is not None
            n -= record.num_tokens
            if n == 0:
                return True
        return False

    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        left = n
        while left > 0:
            record = self._records.pop()
            left -= record.num_tokens
            self._return_into(record, max(0, -left))
        self._length -= n
        return n

    def _return_into(self, record: Record, m: int) -> None:
        """Go back to after the first `m` tokens of a block, which stay recorded."""
        if m == 0 or record.restore is None:
            self.cache = list(record.snapshot)
        else:
            self.cache = list(record.restore(m))
            self._records.append(Record(m, record.restore, record.snapshot))

    def start_speculation(self) -> None:
        self._speculating = True
        self._unrecorded = False
        self._records.clear()

    def stop_speculation(self) -> None:
        self._speculating = False
        self._unrecorded = False
        self._records.clear()

    def checkpoint(self) -> Callable[[], None]:
        length, entries = self._length, self.entries()

        def go_back() -> None:
            self._records.clear()
            self._unrecorded = False
            self.cache, self._length = list(entries), length

        return go_back

    def arrays(self) -> list[mx.array]:
        return [entry for entry in self.cache if entry is not None]
