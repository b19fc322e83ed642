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

from speculate.models.adapter import TextAdapter
from speculate.models.gated_delta import Inputs, gated_delta
from speculate.models.hybrid import forward_hybrid
from speculate.models.stock import FusedProjections, HybridModel, StateSlots
from speculate.protocols import Recurrence


def delta_layer(
    layer: FusedProjections, x: mx.array, cache: StateSlots, recurrence: Recurrence | None = None
) -> mx.array:
    """Run one recurrent layer over `x` `(1, T, width)`; the result has the same shape."""
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(
        layer.in_proj_qkvz(x), layer.in_proj_ba(x)
    )
    flat = [part.reshape(1, x.shape[1], -1) for part in (q, k, v)]
    return gated_delta(layer, Inputs(mx.concatenate(flat, axis=-1), a, b), z, cache, recurrence)


@final
class Qwen3NextAdapter(TextAdapter):
    """Drives `qwen3_next`."""

    @property
    @override
    def text(self) -> HybridModel[FusedProjections]:
        return cast(HybridModel[FusedProjections], self._stock)

    @override
    def run_trunk(self, tokens: mx.array, cache: Sequence[object], /) -> mx.array:
        delta = partial(delta_layer, recurrence=self.recurrence)
        return forward_hybrid(self.text.model, tokens, cache, delta)
