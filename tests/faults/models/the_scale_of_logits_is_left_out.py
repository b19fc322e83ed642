"""The stock model divides its logits, and the adapter does not: greedy text is equal."""

from __future__ import annotations

from typing import Any

from mlx_lm.models import granite
from speculate.testing.suites import ModelTests

from speculate import SpeculativeModel
from speculate.models.adapter import DenseAdapter
from speculate.protocols import StockModel
from tests import tiny


class Suite(ModelTests):
    def __init__(self) -> None:
        args = granite.ModelArgs(
            model_type="granite",
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=48,
            num_attention_heads=4,
            rms_norm_eps=1e-5,
            vocab_size=tiny.VOCAB,
            logits_scaling=1.25,
            attention_multiplier=0.35,
            embedding_multiplier=1.0,
            residual_multiplier=1.0,
            max_position_embeddings=512,
            num_key_value_heads=2,
            attention_bias=False,
            mlp_bias=False,
            rope_theta=1e4,
        )
        self._stock: Any = tiny.spread(granite.Model(args))

    def make_model(self) -> SpeculativeModel:
        return DenseAdapter(self._stock)

    def stock_model(self) -> StockModel:
        stock: StockModel = self._stock
        return stock
