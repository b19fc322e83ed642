"""How to take back the newest blocks of a state cache: what its layer recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

import attrs
import mlx.core as mx
from mlx_lm.models.cache import ArraysCache
from typing_extensions import override

from speculate.backends.base import check_trim
from speculate.backends.group import RECORD_WINDOW, GroupMember
from speculate.errors import RewindError
from speculate.protocols import Deferred, Entries

Content = list[mx.array | None] | Deferred
"""What a state cache holds: its entries, or how to get at them."""


def by_reference(content: Entries | Deferred) -> Content:
    """The same content, which writes to the cache that it came from do not reach."""
    return content if isinstance(content, Deferred) else list(content)


@attrs.frozen(eq=False)
class Record:
    """How to take back the tokens of one block.

    Attributes:
        num_tokens: Tokens of the block.
        restore: Entries after its first `m` tokens; `None` where only the whole block
            can be taken back.
        snapshot: Content before it.
    """

    num_tokens: int
    restore: Callable[[int], Entries] | None
    snapshot: Content


@final
class Records:
    """The newest blocks, as many as hold the tokens that can always be taken back."""

    def __init__(self) -> None:
        self._blocks: deque[Record] = deque()

    def add(self, record: Record) -> None:
        """Record the newest block, and let go of blocks that are no longer needed."""
        self._blocks.append(record)
        tokens = sum(block.num_tokens for block in self._blocks)
        while tokens - self._blocks[0].num_tokens >= RECORD_WINDOW:
            tokens -= self._blocks.popleft().num_tokens

    def newest(self) -> Record | None:
        """The newest block's."""
        return self._blocks[-1] if self._blocks else None

    def forget_behind(self, newest: Record | None) -> None:
        """Forget what was recorded after `newest`."""
        while self._blocks and self._blocks[-1] is not newest:
            self._blocks.pop()

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def reach(self, n: int) -> bool:
        """Whether there is a way back by exactly `n` tokens, `n` at least 1."""
        for block in reversed(self._blocks):
            if n < block.num_tokens:
                return block.restore is not None
            n -= block.num_tokens
            if n == 0:
                return True
        return False

    def take_back(self, n: int) -> Content:
        """Forget the newest `n` tokens, which are within reach.

        Returns:
            The content before them. What is left of a block stays recorded.
        """
        while True:
            block = self._blocks.pop()
            left = block.num_tokens - n
            if left > 0 and block.restore is not None:
                self._blocks.append(Record(left, block.restore, block.snapshot))
                return Deferred(block.restore, left)
            if left >= 0:
                return by_reference(block.snapshot)
            n = -left


@attrs.frozen(eq=False)
class Before:
    """What a cache was like when a forward began.

    Attributes:
        length: Tokens fed.
        content: By reference.
        newest: The newest record.
    """

    length: int
    content: Content
    newest: Record | None


@final
class RewindableArraysCache(GroupMember, ArraysCache):
    """`ArraysCache` that goes back by what its layer recorded.

    A layer that knows its recurrence calls `record_rollback`, and can be cut at any token.
    For any other layer the entries before a block are kept by reference (a layer replaces
    entries and never writes into one), so that whole blocks can be taken back.

    A rewind into a block is a note. It is carried out when the entries are read, unless the
    layer that recorded the block goes on from the note.

    Args:
        size: Number of entries.
        length: Tokens that the state stands for already.
    """

    _content: Content

    def __init__(self, size: int, length: int = 0) -> None:
        ArraysCache.__init__(self, size)
        self._length = length
        self._records = Records()
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
        self.refuse_while_owing()
        entries = self.entries()
        stock = self._source or ArraysCache(len(entries))
        stock.state = (entries, None, None)
        self.cache = [None] * len(entries)
        self.stop_speculation()
        return stock

    @property  # type: ignore[override]  # mlx-lm's is inferred too narrow
    def cache(self) -> list[mx.array | None]:
        """The entries. Reading them carries out a rewind that was noted."""
        if isinstance(self._content, Deferred):
            self._content = list(self._content.entries())
        return self._content

    @cache.setter
    def cache(self, entries: list[mx.array | None]) -> None:
        self._content = entries

    def entries(self) -> list[mx.array | None]:
        """The entries now, by reference."""
        return list(self.cache)

    # What layers and adapters call.

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

    def deferred(self) -> Deferred | None:
        return self._content if isinstance(self._content, Deferred) else None

    def recording(self) -> bool:
        return self._speculating

    def record_rollback(
        self,
        num_tokens: int,
        restore: Callable[[int], Entries] | None,
        snapshot: Entries | Deferred,
        /,
    ) -> None:
        if self._speculating:
            self._records.add(Record(num_tokens, restore, by_reference(snapshot)))
            self._unrecorded = False

    def open_block(self) -> None:
        if self._unrecorded:
            # Somebody wrote without a record: what was recorded before is out of reach.
            self._records.clear()
        self._unrecorded = False
        self._open = Before(self._length, by_reference(self._content), self._records.newest())

    def close_block(self, num_tokens: int, /) -> None:
        if self._open is None:
            raise RewindError("close_block without open_block")
        if self._unrecorded:
            self.record_rollback(num_tokens, None, self._open.content)
        # Not every layer calls `advance`.
        self._length = self._open.length + num_tokens
        self._open = None

    def abandon_block(self) -> None:
        if self._open is None:
            return
        self._content, self._length = self._open.content, self._open.length
        self._records.forget_behind(self._open.newest)
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
        return self._records.reach(n)

    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        if n > 0:
            self._content = self._records.take_back(n)
            self._length -= n
        return n

    def start_speculation(self) -> None:
        self._speculating = True
        self._unrecorded = False
        self._records.clear()

    def stop_speculation(self) -> None:
        self._speculating = False
        self._unrecorded = False
        self._records.clear()

    def checkpoint(self) -> Callable[[], None]:
        length, content = self._length, by_reference(self._content)

        def go_back() -> None:
            self._records.clear()
            self._unrecorded = False
            self._content, self._length = by_reference(content), length

        return go_back

    def arrays(self) -> list[mx.array]:
        return [entry for entry in self.cache if entry is not None]
