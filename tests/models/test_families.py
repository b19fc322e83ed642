"""Every adapter, against the laws of the conformance kit."""

from __future__ import annotations

from typing import cast

from speculate.protocols import SpeculativeModel, StockModel
from speculate.testing.suites import ModelTests
from tests.backends.driving import model, stock


class Family(ModelTests):
    """A family of mlx-lm, and its adapter."""

    name: str

    def make_model(self) -> SpeculativeModel:
        return model(self.name)

    def stock_model(self) -> StockModel:
        return cast(StockModel, stock(self.name))


class TestQwen35(Family):
    name = "qwen3_5"


class TestQwen35Wrapped(Family):
    name = "qwen3_5_wrapped"


class TestQwen35Experts(Family):
    name = "qwen3_5_moe"


class TestQwen3Next(Family):
    name = "qwen3_next"


class TestGptOss(Family):
    name = "gpt_oss"


class TestLlama(Family):
    name = "dense"


class TestQwen3(Family):
    name = "qwen3"


class TestLfm2(Family):
    name = "lfm2"
    whole_blocks = True


class TestQwen35Folded(Family):
    name = "qwen3_5_folded"


class TestQwen3NextFolded(Family):
    name = "qwen3_next_folded"
