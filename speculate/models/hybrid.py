"""The forward of a trunk that mixes Gated DeltaNet layers and full attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask

from speculate.errors import UnsupportedModelError
from speculate.models.stock import DeltaT, HybridTrunk, StateSlots


def forward_hybrid(
    trunk: HybridTrunk[DeltaT],
    tokens: mx.array,
    cache: Sequence[object],
    delta: Callable[[DeltaT, mx.array, StateSlots], mx.array],
) -> mx.array:
    """Run all layers of a trunk.

    Args:
        trunk: The stock trunk.
        tokens: `(1, T)` ids.
        cache: One entry a layer.
        delta: Runs a recurrent layer over `(1, T, width)`, in place of the stock layer's own call.

    Returns:
        `(1, T, width)`, after the final norm.

    Raises:
        UnsupportedModelError: The trunk is split over processes layer by layer.
    """
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
            mixed = delta(layer.linear_attn, x, cast(StateSlots, layer_cache))
        else:
            mixed = layer.self_attn(x, mask, layer_cache)
        h = h + mixed
        h = h + layer.mlp(layer.post_attention_layernorm(h))
    return trunk.norm(h)
