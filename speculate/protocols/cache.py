"""What a layer's cache must do so that tokens can be taken back."""

from collections.abc import Callable, Sequence

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

Entries = Sequence[mx.array | None]
"""The entries of a state cache, in slot order; `None` where nothing was written yet."""


@attrs.frozen(eq=False)
class Deferred:
    """A rewind that is noted, and carried out only if somebody reads the entries.

    Attributes:
        restore: What the layer recorded: `restore(m)` gives the entries after the first `m`
            tokens of a block.
        num_tokens: That `m`.
    """

    restore: Callable[[int], Entries]
    num_tokens: int

    def entries(self) -> Entries:
        """Carry it out."""
        return self.restore(self.num_tokens)


@runtime_checkable
class Trimmable(Protocol):
    """A cache that can forget its newest tokens.

    Law: feeding `xs + ys` and trimming `len(ys)` equals feeding `xs`.
    """

    def is_trimmable(self) -> bool:
        """Whether `trim` can take anything back in the present state."""

    def trim(self, n: int, /) -> int:
        """Forget the newest `n` tokens and return `n`.

        Raises:
            RewindError: `n` is negative, or more than can be taken back. Neither this
                cache nor any other of its group has changed.
        """


@runtime_checkable
class Rollbackable(Trimmable, Protocol):
    """A cache that records, while speculating, what it needs to take tokens back.

    Law: between `start_speculation` and `stop_speculation` an exact `trim(n)` is possible
    for every `n` up to the tokens fed since the start (64 of them at least).
    Law: blocks, single steps and any mix of trims that leave the same text leave the
    same cache, bit for bit.
    """

    def length(self) -> int:
        """Tokens fed so far and not taken back; a window may store fewer."""

    def can_trim(self, n: int, /) -> bool:
        """Whether `trim(n)` would succeed now. True for 0, false below."""

    def start_speculation(self) -> None:
        """Begin to record. Drops whatever was recorded before."""

    def stop_speculation(self) -> None:
        """Stop recording and drop every record. The content stays."""

    def checkpoint(self) -> Callable[[], None]:
        """Hold on to the present, by reference; calling the result returns to it.

        However much was fed since, as long as nothing from before it was taken back. It
        also drops what was recorded. Costs no copy, and keeps alive what is replaced.
        """

    def arrays(self) -> list[mx.array]:
        """Every array the cache holds, for one evaluation over all layers."""

    def hand_back(self) -> object:
        """Move the content into a cache of mlx-lm's own type and return that.

        Where this cache was adopted from one, the same object is refilled, unless
        its type had to change. This cache is empty afterwards.
        """


@runtime_checkable
class RecordsRollback(Rollbackable, Protocol):
    """A state cache that cannot be cut, and so is told by its layer how to get back."""

    def record_rollback(
        self, num_tokens: int, restore: Callable[[int], Entries], snapshot: Entries, /
    ) -> None:
        """Say how to take back the newest `num_tokens` tokens.

        A layer calls this after it has written its new entries, only while `recording()`.

        Args:
            num_tokens: Tokens that the layer just consumed.
            restore: `restore(m)` gives the entries after the first `m` of them, exactly,
                for `0 < m < num_tokens`.
            snapshot: The entries before them, by reference.
        """

    def recording(self) -> bool:
        """Whether a layer should call `record_rollback`."""


@runtime_checkable
class DefersRollback(RecordsRollback, Protocol):
    """A state cache that only notes a rewind, so that its layer may go on without carrying it out.

    Law: whether a layer reads the entries or goes on from `deferred()`, the next entries are
    the same, bit for bit.
    """

    def deferred(self) -> Deferred | None:
        """The rewind that is noted at present. A layer that goes on from it calls `replace`."""

    def replace(self, entries: Entries, /) -> None:
        """Write all entries. Those that a noted rewind would have restored are never made."""

    def record_rollback(
        self, num_tokens: int, restore: Callable[[int], Entries], snapshot: Entries | Deferred, /
    ) -> None:
        """As in `RecordsRollback`; the state before the tokens may itself be deferred."""
