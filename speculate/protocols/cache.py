"""The contract of a layer's cache that can roll back rejected drafts."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

Entries = Sequence[mx.array | None]
"""The entries of a state cache, in slot order; `None` for a slot not written yet."""


@runtime_checkable
class Trimmable(Protocol):
    """A cache that can drop its last tokens.

    Contract: feeding `xs + ys` and trimming `len(ys)` equals feeding `xs`.
    """

    def is_trimmable(self) -> bool:
        """Whether `trim` can remove tokens in the current state."""

    def trim(self, n: int, /) -> int:
        """Drop the last `n` tokens and return `n`.

        Raises:
            RewindError: `n` is negative or exceeds what can be trimmed. Neither this cache
                nor any other of its group has changed.
        """


@runtime_checkable
class Rollbackable(Trimmable, Protocol):
    """A cache that records, while speculating, what it needs to roll back.

    Contract: between `start_speculation` and `stop_speculation` an exact `trim(n)` is possible
    for every `n` up to 64 and up to the number of tokens fed since the start. A state whose layer
    records nothing can be trimmed by whole blocks only.
    Contract: any mix of blocks, single steps and trims that ends at the same sequence leaves
    the same cache, bit for bit.
    """

    def length(self) -> int:
        """Tokens fed and not trimmed; a windowed cache may store fewer."""

    def can_trim(self, n: int, /) -> bool:
        """Whether `trim(n)` would succeed now. True for 0, false for negative `n`."""

    def start_speculation(self) -> None:
        """Start recording. Drops all earlier records."""

    def stop_speculation(self) -> None:
        """Stop recording and drop all records. The content is unchanged."""

    def checkpoint(self) -> Callable[[], None]:
        """Keep the current state by reference; calling the result restores it.

        Restoring drops all records. It works after any number of fed tokens, unless tokens from
        before the checkpoint were trimmed. Nothing is copied; replaced arrays stay alive with
        the checkpoint.
        """

    def arrays(self) -> list[mx.array]:
        """All arrays of the cache, so that all layers can be evaluated in one call."""

    def release(self) -> object:
        """Move the content into a cache of mlx-lm's own type and return it.

        If this cache was adopted from an mlx-lm cache, that object is refilled unless its
        type had to change. This cache is empty afterwards.
        """


@runtime_checkable
class RecordsRollback(Rollbackable, Protocol):
    """A state cache that cannot be trimmed by itself: its layer supplies how to restore it."""

    def record_rollback(
        self, num_tokens: int, restore: Callable[[int], Entries], snapshot: Entries, /
    ) -> None:
        """Record how to roll back the last `num_tokens` tokens.

        A layer calls this after writing its new entries, and only while `recording()`.

        Args:
            num_tokens: Tokens that the layer just consumed.
            restore: `restore(m)` returns the exact entries after the first `m` of these
                tokens, for `0 < m < num_tokens`.
            snapshot: The entries before these tokens, by reference.
        """

    def recording(self) -> bool:
        """Whether a layer should call `record_rollback`."""
