"""An adapter for Falcon-H1: Mamba2 and attention side by side in every layer."""

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx
from mlx_lm.models.falcon_h1 import Model
from typing_extensions import override

from speculate.models.adapter import StockAdapter
from speculate.protocols import Forward


@final
class FalconH1Adapter(StockAdapter):
    """Drives mlx-lm's `falcon_h1`."""

    @property
    def _model(self) -> Model:
        return cast(Model, self.stock)

    @property
    @override
    def vocab_size(self) -> int:
        return int(self._model.args.vocab_size)

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        trunk, args = self._model.model, self._model.args
        hidden: mx.array = trunk(tokens, cache)
        if not args.tie_word_embeddings:
            return Forward(self._model.lm_head(hidden), hidden)
        # The tied embedding is scaled for lookup; the logits have a scale of their own.
        scale = args.lm_head_multiplier / args.embedding_multiplier
        return Forward(trunk.embed_tokens.as_linear(hidden) * scale, hidden)
