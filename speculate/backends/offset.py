"""Caches that keep every row: taking back moves the offset, and nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable

from speculate.backends.member import GroupMember
from speculate.backends.rows import check_trim


class TrimsByOffset(GroupMember):
    """Mixed into a cache of mlx-lm whose `offset` says how many rows count."""

    offset: int
    _position = 0
    """Text position of the first row."""

    def rows(self) -> int:
        """Rows stored."""
        return self.offset - self._position

    def length(self) -> int:
        return self.offset

    def can_trim(self, n: int, /) -> bool:
        return 0 <= n <= self.rows()

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int, /) -> int:
        check_trim(self, self.group(), n)
        self.offset -= n
        return n

    def start_speculation(self) -> None:
        """Nothing to record: the rows stay where they are."""

    def stop_speculation(self) -> None:
        """Nothing was recorded."""

    def checkpoint(self) -> Callable[[], None]:
        offset = self.offset

        def go_back() -> None:
            self.offset = offset

        return go_back
