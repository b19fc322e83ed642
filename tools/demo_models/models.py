"""The three models' shapes, and how they are made before training."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gpt_oss, qwen3, qwen3_5

from tools.demo_models import loop
from tools.demo_models.mtp_head import Head
from tools.demo_models.tokenizer import EOS_ID, VOCAB_SIZE

Config = dict[str, Any]

HYBRID: Config = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": True,
    "configuration_files": ["config.5.0.0.json"],
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "full_attention_interval": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "eos_token_id": EOS_ID,
        "dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}

TOKENIZER_VIEW: Config = {"model_type": "qwen3", "eos_token_id": EOS_ID}
"""What ``config.5.0.0.json`` of the target says, and why there is one.

transformers 5 replaces the tokenizer of any folder whose ``model_type`` is ``qwen3_5`` by Qwen's
own, which splits text differently, whatever ``tokenizer_config.json`` says.  By transformers'
``configuration_files`` it reads this file in place of ``config.json``, and then keeps to
``tokenizer.json``; mlx-lm reads ``config.json`` alone.
"""

DRAFT: Config = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": EOS_ID,
    "dtype": "float32",
}

WINDOWED: Config = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": EOS_ID,
    "dtype": "float32",
}


class Hybrid(nn.Module):
    """The target with its head, under the names that the two have on disk."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        stock = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(_copy(HYBRID)))
        self.language_model = stock.language_model
        self.language_model.mtp = Head(self.language_model.args)

    @property
    def head(self) -> Head:
        head: Head = self.language_model.mtp
        return head

    @property
    def embed(self) -> nn.Embedding:
        return self.language_model.model.embed_tokens

    def trunk(self, tokens: mx.array) -> mx.array:
        """Returns the hidden rows after the final norm, [B, T, D]."""
        hidden: mx.array = self.language_model.model(tokens)
        return hidden


def _copy(config: Config) -> Config:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in config.items()}


def hybrid() -> Hybrid:
    """Makes the untrained target."""
    model = Hybrid()
    for layer in model.language_model.model.layers:
        if layer.is_linear:
            _spread_decays(layer.linear_attn)
    _quiet_residuals(model)
    return model


def draft() -> nn.Module:
    """Makes the untrained draft model."""
    model = qwen3.Model(qwen3.ModelArgs.from_dict(_copy(DRAFT)))
    _quiet_residuals(model)
    return model


def windowed() -> nn.Module:
    """Makes the untrained sliding-window model."""
    model = gpt_oss.Model(gpt_oss.ModelArgs.from_dict(_copy(WINDOWED)))
    _quiet_residuals(model)
    return model


def _spread_decays(gdn: nn.Module) -> None:
    """Starts the memories at time scales from one step to a thousand; stock starts near zero."""
    heads = gdn.num_v_heads
    step = mx.exp(mx.linspace(mx.log(mx.array(1e-3)).item(), mx.log(mx.array(0.3)).item(), heads))
    gdn.dt_bias = step + mx.log(-mx.expm1(-step))
    gdn.A_log = mx.log(mx.linspace(1.0, 4.0, heads))


def _quiet_residuals(model: nn.Module) -> None:
    """Zeroes what writes into the residual stream, so that training starts from the identity."""
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    values = loop.flat(model.parameters())
    quiet = [(k, mx.zeros_like(v)) for k, v in values.items() if k.endswith(ends)]
    model.load_weights(quiet, strict=False)
