"""The example of an adapter, proved by the tests that its author would inherit."""

from __future__ import annotations

from functools import cache
from typing import cast

from mlx_lm.models.falcon_h1 import Model, ModelArgs

from examples.falcon_h1 import FalconH1Adapter
from speculate.protocols import SpeculativeModel, StockModel
from speculate.testing.suites import ModelTests
from tests.tiny import spread


@cache
def tiny(tied: bool) -> StockModel:
    """A Falcon-H1 with random weights, whose attention feeds the next layer's recurrence."""
    args = ModelArgs(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=8,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=8,
        vocab_size=64,
        tie_word_embeddings=tied,
    )
    return cast(StockModel, spread(Model(args)))


class TestFalconH1(ModelTests):
    # Mamba2 scans a block otherwise than it takes a step, and mlx-lm's own logits differ.
    tolerance = 1e-5
    whole_blocks = True
    tied = False

    def make_model(self) -> SpeculativeModel:
        return FalconH1Adapter(tiny(self.tied))

    def stock_model(self) -> StockModel:
        return tiny(self.tied)


class TestTiedFalconH1(TestFalconH1):
    tied = True
