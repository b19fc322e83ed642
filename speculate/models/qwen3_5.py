"""Qwen3.5, dense and with experts, plain or under a multimodal wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast, final

import mlx.core as mx
from mlx_lm.models.base import gather_last_axis
from typing_extensions import Protocol, override

from speculate.models.adapter import StockAdapter, refuse_pipeline
from speculate.models.gated_delta import GatedDeltaLayer, Projected, StateSlots, gated_delta
from speculate.models.hybrid import HybridTrunk, walk
from speculate.models.output import Linear, project
from speculate.protocols import Forward, Recurrence


class SplitProjections(GatedDeltaLayer, Protocol):
    """Qwen3.5's layer: one matrix for each input of the recurrence."""

    in_proj_qkv: Linear
    in_proj_z: Linear
    in_proj_a: Linear
    in_proj_b: Linear
    sharding_group: mx.distributed.Group | None


class TextModel(Protocol):
    """The language model under Qwen3.5's wrapper."""

    model: HybridTrunk[SplitProjections]
    sharding_group: mx.distributed.Group | None


class Wrapper(Protocol):
    """mlx-lm's model class: the language model sits in an attribute."""

    language_model: TextModel


def delta_layer(
    layer: SplitProjections,
    x: mx.array,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """One recurrent layer over `x` `(1, T, width)`."""
    gate = (1, x.shape[1], layer.num_v_heads, layer.head_v_dim)
    projected = Projected(
        qkv=layer.in_proj_qkv(x),
        z=layer.in_proj_z(x).reshape(gate),
        a=layer.in_proj_a(x),
        b=layer.in_proj_b(x),
    )
    out = gated_delta(layer, projected, cache, recurrence)
    if layer.sharding_group is None:
        return out
    return mx.distributed.all_sum(out, group=layer.sharding_group)


@final
class Qwen35Adapter(StockAdapter):
    """Drives `qwen3_5` and `qwen3_5_moe`."""

    @property
    def _text(self) -> TextModel:
        return cast(Wrapper, self._stock).language_model

    @property
    @override
    def vocab_size(self) -> int:
        return self._text.model.embed_tokens.weight.shape[0]

    @override
    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        text = self._text
        refuse_pipeline(text.model.pipeline_size)
        delta = partial(delta_layer, recurrence=self.recurrence)
        hidden = walk(text.model, tokens, cache, delta)
        logits = project(text, text.model.embed_tokens, hidden)
        if text.sharding_group is not None and "lm_head" in cast(dict[str, object], text):
            logits = gather_last_axis(logits, text.sharding_group)
        return Forward(logits, hidden)
