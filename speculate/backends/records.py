"""How to take back the newest blocks of a state cache: what its layer recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

import attrs
import mlx.core as mx

from speculate.backends.group import RECORD_WINDOW
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
