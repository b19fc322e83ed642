"""Tiny random models of every family, spread out so that mistakes show in the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import gpt_oss, lfm2, llama, qwen3, qwen3_5, qwen3_5_moe, qwen3_next

if TYPE_CHECKING:  # a process that has only mlx-lm builds these models, too
    from speculate.protocols import Recurrence

VOCAB: Final = 64
WINDOW: Final = 8

_HYBRID: Final = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    # Attention has to feed recurrence: with the usual 4 it would be the last layer.
    "full_attention_interval": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
_EXPERTS: Final = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 16,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
}


def spread(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights that make every layer matter."""
    mx.random.seed(seed)
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    model.update(tree_unflatten([(name, _weight(name, old)) for name, old in weights]))
    model.eval()
    mx.eval(model.parameters())
    return model


def _weight(name: str, old: mx.array) -> mx.array:
    if "conv" in name and old.ndim > 1:
        return mx.random.normal(old.shape) * 0.5
    if name.endswith("A_log"):
        return mx.random.normal(old.shape) * 0.3 - 1
    if name.endswith("sinks"):
        return mx.random.normal(old.shape)
    if "q_norm" in name:
        return mx.full(old.shape, 2.0)
    if name.endswith(".bias"):
        # Left alone it would be random from before the seed.
        return mx.random.normal(old.shape) * 0.1
    if "norm" in name and old.ndim == 1:
        return 1 + 0.2 * mx.random.normal(old.shape)
    if old.ndim > 1:
        return mx.random.normal(old.shape) * (3 / math.sqrt(old.shape[-1]))
    return old


def hybrid(seed: int = 0, **over: object) -> nn.Module:
    """Qwen3.5, dense: recurrence, attention, recurrence, attention."""
    config = {"model_type": "qwen3_5", **_HYBRID, **over}
    return spread(qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config)), seed)


def hybrid_wrapped(seed: int = 0) -> nn.Module:
    """Qwen3.5 in the multimodal layout: the text model's config is nested."""
    config = {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text", **_HYBRID}}
    return spread(qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config)), seed)


def hybrid_moe(seed: int = 0) -> nn.Module:
    """Qwen3.5 with experts."""
    config = {"model_type": "qwen3_5_moe", **_HYBRID, **_EXPERTS}
    return spread(qwen3_5_moe.Model(qwen3_5_moe.ModelArgs.from_dict(config)), seed)


def next_moe(seed: int = 0) -> nn.Module:
    """Qwen3-Next: fused projections and experts."""
    config = {
        "model_type": "qwen3_next",
        **_HYBRID,
        **_EXPERTS,
        "mlp_only_layers": [],
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
    }
    return spread(qwen3_next.Model(qwen3_next.ModelArgs.from_dict(config)), seed)


def windowed(seed: int = 0, window: int = WINDOW, layers: int = 4) -> nn.Module:
    """gpt-oss: sliding and full attention in turn, experts, sinks in the attention."""
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": window,
        "rope_theta": 10000,
    }
    return spread(gpt_oss.Model(gpt_oss.ModelArgs.from_dict(config)), seed)


def dense(seed: int = 0, **over: object) -> nn.Module:
    """llama with tied embeddings."""
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        **over,
    }
    return spread(llama.Model(llama.ModelArgs.from_dict(config)), seed)


def dense_untied(seed: int = 0) -> nn.Module:
    """Qwen3 with an output matrix of its own."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
    }
    return spread(qwen3.Model(qwen3.ModelArgs.from_dict(config)), seed)


def short_conv(seed: int = 0) -> nn.Module:
    """LFM2: short convolutions, whose state only whole blocks can take back, and attention."""
    config = {
        "model_type": "lfm2",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "rope_theta": 10000.0,
    }
    return spread(lfm2.Model(lfm2.ModelArgs.from_dict(config)), seed)


FAMILIES: Final[dict[str, Callable[[], nn.Module]]] = {
    "qwen3_5": hybrid,
    "qwen3_next": next_moe,
    "gpt_oss": windowed,
    "dense": dense,
}
"""The families of the exactness promise."""

FOLDED: Final[dict[str, Callable[[], nn.Module]]] = {
    "qwen3_5_folded": hybrid,
    "qwen3_next_folded": next_moe,
}
"""Families whose recurrence is taken back as where it is one kernel."""


def recurrence(name: str) -> Recurrence | None:
    """How the recurrent layers of a family are to be run in a test."""
    return "kernel" if name in FOLDED else None


MORE: Final[dict[str, Callable[[], nn.Module]]] = {
    "qwen3_5_wrapped": hybrid_wrapped,
    "qwen3_5_moe": hybrid_moe,
    "qwen3": dense_untied,
    "lfm2": short_conv,
}
"""Other shapes that adapters drive."""
