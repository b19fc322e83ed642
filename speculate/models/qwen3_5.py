"""Qwen3.5: Gated DeltaNet and full attention; dense or with experts, plain or multimodal.

One layer in four has full attention; the others keep a recurrent state, which mlx-lm cannot roll
back. `gated_delta` runs them and records how to do it. Published checkpoints bring a
multi-token-prediction head, which drafts; mlx-lm drops its tensors, `speculate.checkpoints` reads
them. The multimodal wrapper is passed through: text tokens only.
"""

from __future__ import annotations

from typing import cast, final

import mlx.core as mx
from typing_extensions import override

from speculate.models.adapter import HybridAdapter
from speculate.models.gated_delta import Inputs, gated_delta
from speculate.models.stock import HybridModel, Qwen35Model, SplitProjections, StateSlots


@final
class Qwen35Adapter(HybridAdapter[SplitProjections]):
    """Drives `qwen3_5` and `qwen3_5_moe`."""

    @property
    @override
    def text(self) -> HybridModel[SplitProjections]:
        return cast(Qwen35Model, self._stock).language_model

    @override
    def run_delta(self, layer: SplitProjections, x: mx.array, cache: StateSlots, /) -> mx.array:
        inputs = Inputs(layer.in_proj_qkv(x), layer.in_proj_a(x), layer.in_proj_b(x))
        gate = layer.in_proj_z(x).reshape(1, x.shape[1], layer.num_v_heads, layer.head_v_dim)
        out = gated_delta(layer, inputs, gate, cache, self.recurrence)
        group = layer.sharding_group
        return out if group is None else mx.distributed.all_sum(out, group=group)
