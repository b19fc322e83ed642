"""Models that are a trunk and an output matrix: no layer needs driving by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx
from typing_extensions import Protocol, override

from speculate.models.adapter import StockAdapter
from speculate.models.output import Embedding, Linear, project
from speculate.protocols import Forward


class Trunk(Protocol):
    """The part of a stock model that ends with the final norm."""

    embed_tokens: Embedding

    def __call__(self, inputs: mx.array, cache: Sequence[object], /) -> mx.array: ...


class TrunkAndHead(Protocol):
    """A stock model whose logits are its trunk's output times one matrix."""

    model: Trunk
    lm_head: Linear


@final
class DenseAdapter(StockAdapter):
    """Drives llama, Qwen2, Qwen3, gpt-oss and LFM2.

    What each layer's cache is like does not matter here: full attention, sliding windows
    and recurrent states all work, the latter by whole blocks. A family whose stock forward
    does more than this one, as scaling its logits, needs an adapter of its own: named for
    such a family, this one is refused when it is made.
    """

    @property
    def _model(self) -> TrunkAndHead:
        return cast(TrunkAndHead, self._stock)

    @property
    @override
    def vocab_size(self) -> int:
        return self._model.model.embed_tokens.weight.shape[0]

    @override
    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        hidden = self._model.model(tokens, cache)
        return Forward(project(self._stock, self._model.model.embed_tokens, hidden), hidden)
