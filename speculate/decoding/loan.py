"""A caller's list while its arrays are elsewhere: in a window, or with a running generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, final

import mlx.core as mx

from speculate.backends.group import group_of
from speculate.errors import CacheOnLoanError, OptionError
from speculate.protocols import Rollbackable, SpeculativeModel


@final
class OnLoan:
    """Stands in a prompt cache for a layer whose arrays a running generator holds."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> NoReturn:
        raise CacheOnLoanError(
            f"layer {self._layer} of this prompt cache is in use by a running generator. Finish "
            "or close() the generator, or call decoder.settle() to read the cache in between."
        )


class Borrowed:
    """A caller's list, whose caches give way to rewindable ones between `take` and `give_back`.

    An interrupt at any point leaves something to be given back, so whoever takes does this:

        try:
            try:
                borrowed.take()
                ...
            finally:
                borrowed.give_back()
        finally:
            borrowed.give_back()  # does what is left to do, if the first was interrupted

    Args:
        caches: The list.
        adopt: Moves the content of its caches into rewindable ones.

    Attributes:
        list: The caller's list.
        originals: What was in it.
        lost: Tokens that were owed when the list was given back, and are in no cache.
    """

    def __init__(
        self, caches: list[object], adopt: Callable[[Sequence[object]], list[Rollbackable]]
    ) -> None:
        self.list = caches
        self.originals: Sequence[object] = list(caches)
        self.lost: int = 0
        self._adopt = adopt
        # At exit, when the last generators are closed, nothing can be imported any more.
        self._release: Callable[[Sequence[Rollbackable]], list[object]] = list
        self._adopted: list[Rollbackable] = []
        self._stock: list[object] | None = None

    @property
    def caches(self) -> list[Rollbackable]:
        """What to feed. A layer may be replaced in it while the loan runs."""
        return self._adopted

    @property
    def out(self) -> bool:
        """Whether there is something to give back."""
        return bool(self._adopted)

    def take(self) -> None:
        """Move the content. If it raises, the list is as it was."""
        # Costs an import of mlx-lm, which whoever has caches has paid for already.
        from speculate.backends.adopt import contents, release

        self._release = release
        put_back = contents(self.list)
        try:
            self._adopted = self._adopt(self.list)
            self.list[:] = self._shown()
        except BaseException:
            self._adopted = []
            put_back()
            raise

    def give_back(self) -> None:
        """Refill the caller's list with mlx-lm's types.

        Can be called again: it goes on where an interrupt came, and does nothing once it is
        done. A cache that cannot be handed back is put into the list as it is.
        """
        if not self._adopted:
            return
        try:
            if self._stock is None:
                try:
                    mx.eval([cache.arrays() for cache in self._adopted])
                finally:
                    self._take_owed()
                    self._stock = self._release(self._adopted)
        finally:
            self.list[:] = self._adopted if self._stock is None else self._stock
        self._adopted = []

    def _shown(self) -> Sequence[object]:
        """What stands in the list meanwhile."""
        return self._adopted

    def _take_owed(self) -> None:
        """See to it that no tokens are owed: mlx-lm's caches cannot be."""
        group = group_of(self._adopted)
        owed = None if group is None else group.to_replay()
        if group is not None and owed is not None:
            self.lost = owed.shape[1]
            group.take_replay()


@final
class Loan(Borrowed):
    """Takes a caller's list over for a generator, and refills the same list at the end.

    A second owner of the arrays would see in-place writes, and would double the memory
    whenever a buffer grows; so there is none.

    Args:
        model: Whose caches they are.
        caches: The caller's list, of mlx-lm's caches or of this package's.
    """

    def __init__(self, model: SpeculativeModel, caches: list[object]) -> None:
        super().__init__(caches, model.adopt)
        self._model = model

    def take(self) -> None:
        """Move the content. If it raises, the list is as it was.

        Raises:
            CacheOnLoanError: Another generator has it.
            OptionError: It is another model's.
        """
        if any(isinstance(cache, OnLoan) for cache in self.list):
            raise CacheOnLoanError("this prompt cache is in use by another running generator")
        layers = len(self._model.make_cache())
        if len(self.list) != layers:
            raise OptionError(
                f"the prompt cache has {len(self.list)} layers and the model {layers}: it is "
                "another model's, or two models' in one list"
            )
        super().take()

    def length(self) -> int:
        """Tokens fed, as far as the caches can tell."""
        return max((cache.length() for cache in self._adopted), default=0)

    def _shown(self) -> Sequence[object]:
        return [OnLoan(layer) for layer in range(len(self.list))]
