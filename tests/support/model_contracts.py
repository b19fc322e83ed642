"""The contracts of a model, run on any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import mlx.core as mx
from typing_extensions import override

from speculate import SpeculativeModel
from speculate.testing import ModelTests
from speculate.testing._model_harness import ModelHarness


@final
class Contracts(ModelTests):
    """Runs contracts on one model, which is its own reference unless an oracle is given."""

    def __init__(
        self,
        model: SpeculativeModel,
        *,
        length: int = 160,
        oracle: Callable[[Sequence[int]], mx.array] | None = None,
    ) -> None:
        self._harness = ModelHarness(model, length=length, oracle=oracle)

    def make_model(self) -> SpeculativeModel:
        return self._harness.model

    @override
    def harness(self) -> ModelHarness:
        return self._harness
