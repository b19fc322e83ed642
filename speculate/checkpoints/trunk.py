"""Loading the trunk of a checkpoint that also holds a head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm import utils
from mlx_lm.models import qwen3_next
from mlx_lm.utils import load_model
from typing_extensions import override

from speculate.checkpoints.folder import read_json
from speculate.checkpoints.names import strip_prefix
from speculate.protocols import StockModel


class _Next(qwen3_next.Model):
    """Qwen3-Next while it is loaded: the head's tensors are dropped first.

    mlx-lm's own `sanitize` does so for a raw checkpoint only. If the experts are stacked already
    it returns early, and strict loading then fails on the head's tensors.
    """

    @override
    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        trunk = {name: array for name, array in weights.items() if strip_prefix(name) is None}
        return cast(dict[str, mx.array], qwen3_next.Model.sanitize(self, trunk))


def load_trunk(
    folder: Path,
    *,
    lazy: bool = False,
    model_config: Mapping[str, object] | None = None,
    trust_remote_code: bool = False,
) -> tuple[StockModel, dict[str, object]]:
    """Load a model as mlx-lm's `load_model` does, also from folders with a head that it refuses.

    Args:
        folder: The checkpoint.
        lazy: Read the weights when they are first used.
        model_config: Entries that replace those of `config.json`.
        trust_remote_code: Run Python code that the checkpoint contains.

    Returns:
        The model, of mlx-lm's own class, and its config.

    Raises:
        CheckpointError: There is no readable `config.json`.
        Exception: What mlx-lm raises for a checkpoint that it cannot load.
    """
    overrides = None if model_config is None else dict(model_config)
    load = partial(
        load_model, folder, lazy, model_config=overrides, trust_remote_code=trust_remote_code
    )
    if read_json(folder / "config.json").get("model_type") != "qwen3_next":
        return cast(tuple[StockModel, dict[str, object]], load())
    model, config = load(get_model_classes=lambda config: (_Next, qwen3_next.ModelArgs))
    if type(model) is _Next:
        # Once loaded, it is a stock model like any other.
        object.__setattr__(model, "__class__", qwen3_next.Model)
    return cast(StockModel, model), config


def dequantize_model(stock: StockModel) -> None:
    """Replace every quantised layer of a model, in place, by an unquantised one in float32."""
    module = cast(Module, stock)
    module.set_dtype(mx.float32)
    utils.dequantize_model(module)
    # Scales stored as bytes dequantise to half precision.
    module.set_dtype(mx.float32)
