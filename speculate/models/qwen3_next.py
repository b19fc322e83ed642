"""Qwen3-Next: Gated DeltaNet with fused projections, full attention, experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast, final

import mlx.core as mx
from typing_extensions import Protocol, override

from speculate.models.adapter import StockAdapter, refuse_pipeline
from speculate.models.gated_delta import GatedDeltaLayer, Projected, StateSlots, gated_delta
from speculate.models.hybrid import HybridTrunk, walk
from speculate.models.output import Linear, project
from speculate.protocols import Forward, Recurrence


class FusedProjections(GatedDeltaLayer, Protocol):
    """Qwen3-Next's layer: two matrices, whose columns are interleaved by key head."""

    in_proj_qkvz: Linear
    in_proj_ba: Linear

    def fix_query_key_value_ordering(
        self, qkvz: mx.array, ba: mx.array, /
    ) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array]:
        """Queries, keys, values, gate, write strength and decay, by head."""


class TextModel(Protocol):
    """mlx-lm's model class."""

    model: HybridTrunk[FusedProjections]


def delta_layer(
    layer: FusedProjections,
    x: mx.array,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """One recurrent layer over `x` `(1, T, width)`."""
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(
        layer.in_proj_qkvz(x), layer.in_proj_ba(x)
    )
    flat = [part.reshape(1, x.shape[1], -1) for part in (q, k, v)]
    projected = Projected(qkv=mx.concatenate(flat, axis=-1), z=z, a=a, b=b)
    return gated_delta(layer, projected, cache, recurrence)


@final
class Qwen3NextAdapter(StockAdapter):
    """Drives `qwen3_next`."""

    @property
    def _text(self) -> TextModel:
        return cast(TextModel, self._stock)

    @property
    @override
    def vocab_size(self) -> int:
        return self._text.model.embed_tokens.weight.shape[0]

    @override
    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        trunk = self._text.model
        refuse_pipeline(trunk.pipeline_size)
        delta = partial(delta_layer, recurrence=self.recurrence)
        hidden = walk(trunk, tokens, cache, delta)
        return Forward(project(self._stock, trunk.embed_tokens, hidden), hidden)
