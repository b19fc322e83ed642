"""Qwen3-Next: Gated DeltaNet with fused projections, full attention, experts.

As Qwen3.5, but a recurrent layer has two input matrices whose columns are interleaved by key head.
Checkpoints store a multi-token-prediction head under `mtp.*`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast, final

import mlx.core as mx
from typing_extensions import override

from speculate.models.adapter import StockAdapter, project, refuse_pipeline
from speculate.models.gated_delta import Projections, gated_delta
from speculate.models.hybrid import forward_hybrid
from speculate.models.stock import FusedProjections, Qwen3NextModel, StateSlots
from speculate.protocols import Forward, Recurrence


def delta_layer(
    layer: FusedProjections,
    x: mx.array,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """Run one recurrent layer over `x` `(1, T, width)`; the result has the same shape."""
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(
        layer.in_proj_qkvz(x), layer.in_proj_ba(x)
    )
    flat = [part.reshape(1, x.shape[1], -1) for part in (q, k, v)]
    projections = Projections(qkv=mx.concatenate(flat, axis=-1), z=z, a=a, b=b)
    return gated_delta(layer, projections, cache, recurrence)


@final
class Qwen3NextAdapter(StockAdapter):
    """Drives `qwen3_next`."""

    @property
    def _text(self) -> Qwen3NextModel:
        return cast(Qwen3NextModel, self._stock)

    @property
    @override
    def vocab_size(self) -> int:
        return self._text.model.embed_tokens.weight.shape[0]

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        trunk = self._text.model
        refuse_pipeline(trunk.pipeline_size)
        delta = partial(delta_layer, recurrence=self.recurrence)
        hidden = forward_hybrid(trunk, tokens, cache, delta)
        return Forward(project(self._stock, trunk.embed_tokens, hidden), hidden)
