"""Qwen3-Next: Gated DeltaNet with fused projections, full attention, experts.

As Qwen3.5, but a recurrent layer has two input matrices whose columns are interleaved by key head.
Checkpoints store a multi-token-prediction head under `mtp.*`.
"""

from __future__ import annotations

from typing import cast, final

import mlx.core as mx
from typing_extensions import override

from speculate.models.adapter import HybridAdapter
from speculate.models.gated_delta import Inputs, gated_delta
from speculate.models.stock import FusedProjections, HybridModel, StateSlots


@final
class Qwen3NextAdapter(HybridAdapter[FusedProjections]):
    """Drives `qwen3_next`."""

    @property
    @override
    def text(self) -> HybridModel[FusedProjections]:
        return cast(HybridModel[FusedProjections], self._stock)

    @override
    def run_delta(self, layer: FusedProjections, x: mx.array, cache: StateSlots, /) -> mx.array:
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(x), layer.in_proj_ba(x)
        )
        qkv = mx.concatenate([part.reshape(1, x.shape[1], -1) for part in (q, k, v)], axis=-1)
        return gated_delta(layer, Inputs(qkv, a, b), z, cache, self.recurrence)
