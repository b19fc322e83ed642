"""The walk over a trunk that mixes Gated DeltaNet layers and full attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from typing_extensions import Protocol

from speculate.models.gated_delta import StateSlots
from speculate.models.output import Embedding, Linear


class Attention(Protocol):
    """A stock attention layer."""

    def __call__(self, x: mx.array, mask: mx.array | str | None, cache: object, /) -> mx.array: ...


DeltaT = TypeVar("DeltaT")


class HybridLayer(Protocol[DeltaT]):
    """A stock decoder layer: `linear_attn` or `self_attn`, then an MLP."""

    is_linear: bool
    linear_attn: DeltaT
    self_attn: Attention
    input_layernorm: Linear
    post_attention_layernorm: Linear
    mlp: Linear


class HybridTrunk(Protocol[DeltaT]):
    """A stock trunk of such layers."""

    embed_tokens: Embedding
    layers: Sequence[HybridLayer[DeltaT]]
    norm: Linear
    fa_idx: int
    pipeline_size: int


def walk(
    trunk: HybridTrunk[DeltaT],
    tokens: mx.array,
    cache: Sequence[object],
    delta: Callable[[DeltaT, mx.array, StateSlots], mx.array],
) -> mx.array:
    """Run all layers, the recurrent ones through `delta`.

    Returns:
        `(1, T, width)`, after the final norm.
    """
    h = trunk.embed_tokens(tokens)
    mask = create_attention_mask(h, cache[trunk.fa_idx])
    for layer, layer_cache in zip(trunk.layers, cache, strict=True):
        x = layer.input_layernorm(h)
        if layer.is_linear:
            mixed = delta(layer.linear_attn, x, cast(StateSlots, layer_cache))
        else:
            mixed = layer.self_attn(x, mask, layer_cache)
        h = h + mixed
        h = h + layer.mlp(layer.post_attention_layernorm(h))
    return trunk.norm(h)
