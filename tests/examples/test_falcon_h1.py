"""The example of an adapter, proved by the tests that its author would inherit."""

from functools import cache
from typing import cast

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.falcon_h1 import Model, ModelArgs

from examples.falcon_h1 import FalconH1Adapter
from speculate import SpeculativeModel
from speculate.protocols import StockModel
from speculate.testing import ModelTests


@cache
def tiny(tied: bool) -> StockModel:
    """Random weights, larger than usual: a row that is lost has to show."""
    mx.random.seed(0)
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
    model = Model(args)
    model.update(tree_map(lambda w: 4 * w if w.ndim > 1 else w, model.parameters()))
    return cast(StockModel, model)


class TestFalconH1(ModelTests):
    # Mamba2 scans a block otherwise than it takes a step, and mlx-lm's own logits differ.
    tolerance = 1e-5
    whole_blocks = True

    def make_model(self) -> SpeculativeModel:
        return FalconH1Adapter(tiny(tied=False))

    def stock_model(self) -> StockModel:
        return tiny(tied=False)


class Tied(TestFalconH1):
    def make_model(self) -> SpeculativeModel:
        return FalconH1Adapter(tiny(tied=True))

    def stock_model(self) -> StockModel:
        return tiny(tied=True)


def test_tied_embeddings_have_a_scale_of_their_own() -> None:
    Tied().test_logits_equal_those_of_mlx_lm()
