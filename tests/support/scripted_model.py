"""A model that says what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import mlx.core as mx

from speculate import SpeculativeModel
from speculate.protocols import Forward, Rollbackable
from tests.support import reference, tiny, tokenizers
from tests.support.recording import PassingModel, said_at


@final
class Saying(PassingModel):
    """Feeds a real model, caches and all, but says what a text says, row by row."""

    def __init__(self, text: list[int]) -> None:
        super().__init__(reference.get("qwen3_5").model)
        self._text = text

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self.inner.forward(tokens, cache)
        end = max(layer.length() for layer in cache if isinstance(layer, Rollbackable))
        said = [said_at(self._text, end - i, ()) or 0 for i in reversed(range(tokens.shape[1]))]
        loud = mx.where(mx.arange(tiny.VOCAB) == mx.array(said)[:, None], 1e6, 0.0)
        return Forward(out.logits + loud[None], out.hidden)


def saying(ids: list[int]) -> SpeculativeModel:
    """A model that says these ids after a prompt of one token, and then the first id for ever."""
    return Saying([2, *ids])


def spelled(text: str) -> list[int]:
    """Ids of a text, longest token first, so that stop strings sit within and across tokens."""
    known, ids = tokenizers.vocabulary(), []
    while text:
        word = max((w for w in known if text.startswith(w)), key=len)
        ids.append(known[word])
        text = text[len(word) :]
    return ids
