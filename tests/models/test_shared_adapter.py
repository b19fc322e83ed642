"""Architectures that share the dense adapter, each against its own stock forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models import qwen2, qwen3_moe
from mlx_lm.models.cache import make_prompt_cache

import speculate as sp
from speculate.protocols import StockModel
from tests.support.tiny import VOCAB, spread

DENSE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000,
}
EXPERTS = {
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}


def make_qwen2() -> Module:
    config = {"model_type": "qwen2", **DENSE, "tie_word_embeddings": True}
    return spread(qwen2.Model(qwen2.ModelArgs.from_dict(config)))


def make_qwen3_moe() -> Module:
    config = {"model_type": "qwen3_moe", **DENSE, **EXPERTS}
    return spread(qwen3_moe.Model(qwen3_moe.ModelArgs.from_dict(config)))


@pytest.mark.parametrize("make", [make_qwen2, make_qwen3_moe])
def test_blocks_equal_the_stock_forward_and_rewind(make: Callable[[], Module]) -> None:
    stock = make()
    model = sp.adapt(cast(StockModel, stock))
    text = [(7 * i * i + 3) % VOCAB for i in range(45)]
    ours, theirs, at = model.make_cache(), make_prompt_cache(stock), 0
    for width in range(1, 10):
        block = mx.array(text[at : at + width])[None]
        expected = cast(StockModel, stock)(block, cache=theirs)
        with sp.speculation(ours) as window:
            model.forward(mx.array([[1, 2, 3]]), ours)
            window.keep(0)
            assert mx.array_equal(model.forward(block, ours).logits, expected)
            window.keep(width)
        at += width
