"""Qwen3.5: Gated DeltaNet and full attention; dense or with experts, plain or multimodal.

One layer in four has full attention; the others keep a recurrent state, which mlx-lm cannot roll
back. `gated_delta` runs them and records how to do it. Published checkpoints bring a
multi-token-prediction head, which drafts; mlx-lm drops its tensors, `speculate.checkpoints` reads
them. The multimodal wrapper is passed through: text tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast, final

import mlx.core as mx
from mlx_lm.models.base import gather_last_axis
from typing_extensions import override

from speculate.models.adapter import StockAdapter, project, refuse_pipeline
from speculate.models.gated_delta import Projections, gated_delta
from speculate.models.hybrid import forward_hybrid
from speculate.models.stock import Qwen35Model, Qwen35Text, SplitProjections, StateSlots
from speculate.protocols import Forward, Recurrence


def delta_layer(
    layer: SplitProjections,
    x: mx.array,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """Run one recurrent layer over `x` `(1, T, width)`; the result has the same shape."""
    gate = (1, x.shape[1], layer.num_v_heads, layer.head_v_dim)
    projections = Projections(
        qkv=layer.in_proj_qkv(x),
        z=layer.in_proj_z(x).reshape(gate),
        a=layer.in_proj_a(x),
        b=layer.in_proj_b(x),
    )
    out = gated_delta(layer, projections, cache, recurrence)
    if layer.sharding_group is None:
        return out
    return mx.distributed.all_sum(out, group=layer.sharding_group)


@final
class Qwen35Adapter(StockAdapter):
    """Drives `qwen3_5` and `qwen3_5_moe`."""

    @property
    def _text(self) -> Qwen35Text:
        return cast(Qwen35Model, self._stock).language_model

    @property
    @override
    def vocab_size(self) -> int:
        return self._text.model.embed_tokens.weight.shape[0]

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        text = self._text
        refuse_pipeline(text.model.pipeline_size)
        delta = partial(delta_layer, recurrence=self.recurrence)
        hidden = forward_hybrid(text.model, tokens, cache, delta)
        logits = project(text, text.model.embed_tokens, hidden)
        if text.sharding_group is not None and "lm_head" in cast(dict[str, object], text):
            logits = gather_last_axis(logits, text.sharding_group)
        return Forward(logits, hidden)
