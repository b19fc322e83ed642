"""Every adapter, against the contracts of the conformance kit."""

from __future__ import annotations

from typing import cast

import pytest

from speculate import SpeculativeModel
from speculate.protocols import StockModel
from speculate.testing import ModelTests
from speculate.testing.models import ROUNDS
from tests.support.cache_contents import model, stock


class Family(ModelTests):
    """A family of mlx-lm, and its adapter."""

    name: str

    def make_model(self) -> SpeculativeModel:
        return model(self.name)

    def stock_model(self) -> StockModel:
        return cast(StockModel, stock(self.name))


class TestQwen35(Family):
    name = "qwen3_5"


@pytest.mark.soak
class TestQwen35Wrapped(Family):
    name = "qwen3_5_wrapped"


@pytest.mark.soak
class TestQwen35Experts(Family):
    name = "qwen3_5_moe"


class TestQwen3Next(Family):
    name = "qwen3_next"


class TestGptOss(Family):
    name = "gpt_oss"


class TestLlama(Family):
    name = "dense"


@pytest.mark.soak
class TestQwen3(Family):
    name = "qwen3"


class TestLfm2(Family):
    name = "lfm2"
    whole_blocks = True


class TestQwen35Folded(Family):
    name = "qwen3_5_folded"


@pytest.mark.soak
class TestQwen3NextFolded(Family):
    name = "qwen3_next_folded"


VARIANTS = [TestQwen35Wrapped, TestQwen35Experts, TestQwen3, TestQwen3NextFolded]
"""Families that differ from another in how their layers are named or filled, not in kind."""


@pytest.mark.parametrize("suite", VARIANTS)
def test_variants_say_and_rewind_what_they_ought_to(suite: type[Family]) -> None:
    suite().test_logits_equal_those_of_mlx_lm()
    suite().test_rejected_tokens_leave_no_trace([7], ROUNDS[::2])
