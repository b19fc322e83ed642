"""The base of adapters of trunks that mix Gated DeltaNet layers and full attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, cast

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from typing_extensions import override

from speculate.errors import UnsupportedModelError
from speculate.models.adapter import TextAdapter
from speculate.models.stock import DeltaT, HybridModel, StateSlots


class HybridAdapter(TextAdapter, Generic[DeltaT]):
    """Calls the layers itself, over their stock submodules, and `run_delta` for recurrent ones."""

    @property
    @override
    @abstractmethod
    def text(self) -> HybridModel[DeltaT]: ...

    @abstractmethod
    def run_delta(self, layer: DeltaT, x: mx.array, cache: StateSlots, /) -> mx.array:
        """Run one recurrent layer over `x` `(1, T, width)`; the result has the same shape."""

    @override
    def run_trunk(self, tokens: mx.array, cache: Sequence[object], /) -> mx.array:
        trunk = self.text.model
        if trunk.pipeline_size > 1:
            raise UnsupportedModelError(
                f"the model is split into {trunk.pipeline_size} pipeline stages, which is not "
                "supported; load it whole, or shard it within its layers"
            )
        h = trunk.embed_tokens(tokens)
        mask = create_attention_mask(h, cache[trunk.fa_idx])
        for layer, layer_cache in zip(trunk.layers, cache, strict=True):
            x = layer.input_layernorm(h)
            if layer.is_linear:
                mixed = self.run_delta(layer.linear_attn, x, cast(StateSlots, layer_cache))
            else:
                mixed = layer.self_attn(x, mask, layer_cache)
            h = h + mixed
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        return trunk.norm(h)
