"""mlx-lm's steps leave it to their caller to end a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, final

import mlx.core as mx
from mlx.nn.layers.base import Module

from speculate.decoding.inputs import check_model
from speculate.loading.adapt import adapt
from speculate.protocols import Forward, MTPHead, Rollbackable, SpeculativeModel, StockModel


@final
class Endless:
    """A model that knows no end-of-text ids.

    Args:
        model: mlx-lm's, or an adapted one.
        name: The option that it was given as.

    Raises:
        OptionError: It is neither.
    """

    def __init__(self, model: StockModel | SpeculativeModel, name: str) -> None:
        stock = isinstance(model, Module)
        adapted = adapt(cast(StockModel, model)) if stock else model
        check_model(adapted, name)
        self._model = cast(SpeculativeModel, adapted)

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def head(self) -> MTPHead | None:
        return self._model.head

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return self._model.vocabulary

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self._model.make_cache(max_kv_size, position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return self._model.adopt(cache)

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        return self._model.forward(tokens, cache)
