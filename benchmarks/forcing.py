"""A target that emits a given text, at the cost of the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate import SpeculativeModel
from speculate.protocols import Forward, MTPHead, Rollbackable

BONUS: Final = 1e4
"""Added to the logit of the token that has to come: nothing else is ever chosen."""


@final
class ForcedModel:
    """Adds to the logits of another model whatever makes it emit a text.

    Hidden states, caches and head are the model's own, so drafts are what they would be if
    the model had chosen that text.

    Args:
        model: The model.
        text: Ids of prompt and output. Behind its end the model speaks for itself.
    """

    def __init__(self, model: SpeculativeModel, text: Sequence[int]) -> None:
        self._model = model
        self._text = mx.array(list(text))

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._model.eos_token_ids

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

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self._model.forward(tokens, cache)
        fed = cast(Rollbackable, cache[-1]).length()
        after = self._text[fed - tokens.shape[1] + 1 : fed + 1]
        rows = mx.arange(after.shape[0])
        return Forward(out.logits.at[0, rows, after].add(mx.array(BONUS)), out.hidden)
