"""Borrows a caller's list of caches, returns it, and recognises it on the next turn."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NoReturn, final

import mlx.core as mx

from speculate.backends.group import group_of
from speculate.errors import CacheOnLoanError, OptionError
from speculate.protocols import Rollbackable, SpeculativeModel


@final
class LoanedLayer:
    """Placeholder for a layer's cache while a running generator holds its arrays."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> NoReturn:
        raise CacheOnLoanError(
            f"layer {self._layer} of this prompt cache is in use by a running generator. Finish "
            "or close() the generator, or call decoder.settle() to read the cache in between."
        )


class CacheLoan:
    """A caller's list whose caches are swapped for rewindable ones from `take` to `give_back`.

    An interrupt may come anywhere, also inside `give_back`, so call it twice:

        try:
            try:
                loan.take()
                ...
            finally:
                loan.give_back()
        finally:
            loan.give_back()  # finishes the work if the first call was interrupted

    Args:
        caches: The caller's list.
        adopt: Moves the content of caches into rewindable ones.

    Attributes:
        list: The caller's list.
        originals: Its original entries.
        lost: Committed tokens that were waiting for replay on return, and are in no cache.
    """

    def __init__(
        self, caches: list[object], adopt: Callable[[Sequence[object]], list[Rollbackable]]
    ) -> None:
        self.list = caches
        self.originals: Sequence[object] = list(caches)
        self.lost: int = 0
        self._adopt = adopt
        # Set by `take`: at interpreter exit, when generators are closed, imports fail.
        self._release: Callable[[Sequence[Rollbackable]], list[object]] = list
        self._adopted: list[Rollbackable] = []
        self._stock: list[object] | None = None

    @property
    def caches(self) -> list[Rollbackable]:
        """The rewindable caches. Entries may be replaced during the loan."""
        return self._adopted

    @property
    def out(self) -> bool:
        """Whether the list is borrowed."""
        return bool(self._adopted)

    def length(self) -> int:
        """Return the length that the caches report, in tokens; 0 if they record none."""
        return max((cache.length() for cache in self._adopted), default=0)

    def take(self) -> None:
        """Swap the caches. If this raises, the list is unchanged."""
        # Imports mlx-lm, which a caller with caches has loaded already.
        from speculate.backends.adopt import contents, release

        self._release, self._stock = release, None
        put_back = contents(self.list)
        try:
            self._adopted = self._adopt(self.list)
            self.list[:] = self._shown()
        except BaseException:
            self._adopted = []
            put_back()
            raise

    def give_back(self) -> None:
        """Restore mlx-lm's cache types in the caller's list.

        Calling it again resumes after an interrupt, or does nothing. If restoring fails, the
        rewindable caches are put into the list.
        """
        if not self._adopted:
            return
        try:
            if self._stock is None:
                try:
                    mx.eval([cache.arrays() for cache in self._adopted])
                finally:
                    self._drop_replay()
                    self._stock = self._release(self._adopted)
        finally:
            self.list[:] = self._adopted if self._stock is None else self._stock
        self._adopted = []

    def _shown(self) -> Sequence[object]:
        """Return the entries of the list during the loan."""
        return self._adopted

    def _drop_replay(self) -> None:
        """Drop tokens that wait for replay, since mlx-lm's caches cannot hold any."""
        group = group_of(self._adopted)
        to_replay = None if group is None else group.to_replay()
        if group is not None and to_replay is not None:
            self.lost = to_replay.shape[1]
            group.take_replay()


@final
class PromptCacheLoan(CacheLoan):
    """A prompt cache that a generator borrows, filled with placeholders until its return.

    The arrays are moved, not shared: a second owner would see in-place writes, and would double
    the memory whenever a buffer grows.

    Args:
        model: The model that the caches belong to.
        caches: The caller's list, of mlx-lm's caches or of this package's.
    """

    def __init__(self, model: SpeculativeModel, caches: list[object]) -> None:
        super().__init__(caches, model.adopt)
        self._model = model

    def take(self) -> None:
        """Swap the caches for placeholders. If this raises, the list is unchanged.

        Raises:
            CacheOnLoanError: Another generator has borrowed the list.
            OptionError: The list does not fit the model.
        """
        if any(isinstance(cache, LoanedLayer) for cache in self.list):
            raise CacheOnLoanError("this prompt cache is in use by another running generator")
        layers = len(self._model.make_cache())
        if len(self.list) != layers:
            raise OptionError(
                f"the prompt cache has {len(self.list)} layers and the model {layers}: the list "
                "belongs to another model or to two models"
            )
        super().take()

    def take_again(self, length: int) -> None:
        """Borrow the list again, which was returned with `length` tokens.

        Raises:
            CacheOnLoanError: The caches changed in the meantime.
        """
        self.take()
        if self.length() != length:
            raise CacheOnLoanError(
                f"the prompt cache changed while the run was settled: it held {length} tokens "
                f"and now holds {self.length()}. Close the generator and start a new one."
            )

    def _shown(self) -> Sequence[object]:
        return [LoanedLayer(layer) for layer in range(len(self.list))]


@final
class CachedSequence:
    """Remembers which caches hold the sequence of the last call, and its length.

    On a later turn over the same cache objects, the proposers continue from their position, and
    the length is known even if the caches do not record one.

    Attributes:
        in_step: Whether the proposers are at the end of that sequence: `False` after an
            interrupt inside a proposer.
    """

    def __init__(self) -> None:
        self._caches: list[weakref.ref[object]] = []
        self._length = 0
        self.in_step: bool = False

    def remember(self, caches: list[object], length: int, *, in_step: bool) -> None:
        """Record that the caches, and if `in_step` the proposers, hold `length` tokens."""
        references = [weakref.ref(cache) for cache in caches]
        self._caches, self._length, self.in_step = references, length, in_step

    def length_in(self, loan: CacheLoan) -> int | None:
        """Return the length of the remembered sequence, or `None` if the caches changed."""
        # Imports mlx-lm, which a caller with its caches has loaded already.
        from speculate.backends.adopt import knows_length

        caches, reported = loan.originals, loan.length()
        # A recurrent state does not record the length of its sequence.
        unknown = reported == 0 and not any(map(knows_length, caches))
        same = len(caches) == len(self._caches) and all(
            ref() is cache for ref, cache in zip(self._caches, caches, strict=True)
        )
        return self._length if same and (unknown or reported == self._length) else None
