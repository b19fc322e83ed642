"""An adapter is compared with its stock model, also where its author did not say which."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest
from typing_extensions import override

from speculate import SpeculativeModel
from speculate.models.adapter import StockAdapter
from speculate.protocols import Forward
from speculate.testing import ContractError, ModelTests
from tests.support import reference


class Louder(StockAdapter):
    """An adapter whose forward is not quite the stock model's."""

    @property
    def vocab_size(self) -> int:
        return reference.get("dense").model.vocab_size

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        out = reference.get("dense").model.forward(tokens, cache)
        return Forward(out.logits * 1.01, out.hidden)


class Unsaid(ModelTests):
    """Says how to make the adapter and nothing else."""

    def make_model(self) -> SpeculativeModel:
        return Louder(reference.get("dense").stock)


def test_a_forward_that_differs_is_found() -> None:
    with pytest.raises(ContractError, match=r"\d from .* a cold prefill by mlx-lm's own model$"):
        Unsaid().test_logits_equal_those_of_mlx_lm()
