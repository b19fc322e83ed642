"""A prompt cache while a generator works on it: its arrays have moved out, and it says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, final

import mlx.core as mx

from speculate.backends.joining import group_of
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


@final
class Loan:
    """Takes a caller's list over, and refills the same list at the end.

    A second owner of the arrays would see in-place writes, and would double the memory
    whenever a buffer grows; so there is none.

    Args:
        model: Whose caches they are.
        caches: The caller's list, of mlx-lm's caches or of this package's.

    Attributes:
        list: The caller's list.
        originals: What was in it.
    """

    def __init__(self, model: SpeculativeModel, caches: list[object]) -> None:
        if any(isinstance(cache, OnLoan) for cache in caches):
            raise CacheOnLoanError("this prompt cache is in use by another running generator")
        layers = len(model.make_cache())
        if len(caches) != layers:
            raise OptionError(
                f"the prompt cache has {len(caches)} layers and the model {layers}: it is another "
                "model's, or two models' in one list"
            )
        self.list = caches
        self.originals: Sequence[object] = list(caches)
        self._adopted = model.adopt(caches)
        caches[:] = [OnLoan(layer) for layer in range(len(caches))]

    @property
    def caches(self) -> list[Rollbackable]:
        """What to feed. A layer may be replaced in it while the loan runs."""
        return self._adopted

    def length(self) -> int:
        """Tokens fed, as far as the caches can tell."""
        return max((cache.length() for cache in self._adopted), default=0)

    def give_back(self) -> None:
        """Refill the caller's list with mlx-lm's types. The loan is over."""
        try:
            mx.eval([cache.arrays() for cache in self._adopted])
        finally:
            group = group_of(self._adopted)
            if group is not None:
                # After a failure: who counts what was fed has counted them as missing.
                group.take_owed()
            self.list[:] = [cache.hand_back() for cache in self._adopted]
