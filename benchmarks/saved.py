"""A grown model on disk, with its head beside it, for libraries that load what they run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from benchmarks.grow import hybrid_args
from benchmarks.padding import put_all
from benchmarks.places import head_width, hybrid_places
from speculate import SpeculativeModel, adapt, load_demo, load_mtp_head
from speculate.checkpoints import find_head, read_head
from speculate.checkpoints.export import head_config, write_head_checkpoint
from speculate.loading import demo_folder, stock_of
from speculate.protocols import StockModel


def save_grown(model: SpeculativeModel, folder: Path) -> tuple[Path, Path]:
    """Write a grown hybrid, and its head as a drafter.

    Only of a model whose norms all have the config's eps is a config the whole truth: of the
    sizes that are measured that is hidden 768.

    Args:
        model: From `grown_hybrid`.
        folder: An empty one.

    Returns:
        The model's folder and the drafter's.
    """
    trunk, drafter = folder / "model", folder / "drafter"
    trunk.mkdir()
    drafter.mkdir()
    weights = dict(cast("list[tuple[str, mx.array]]", tree_flatten(_module(model).parameters())))
    mx.save_safetensors(str(trunk / "model.safetensors"), weights, metadata={"format": "mlx"})
    large = hybrid_args(model)
    text = {**dataclasses.asdict(large), "model_type": "qwen3_5_text"}
    rotated = int(head_width(large) * large.partial_rotary_factor)
    # mlx-vlm splits positions by axis, which for text are all the same.
    rope = {**(large.rope_parameters or {}), "mrope_section": [rotated // 2, 0, 0]}
    config = {"model_type": "qwen3_5", "text_config": {**text, "rope_parameters": rope}}
    (trunk / "config.json").write_text(json.dumps(config), encoding="utf-8")
    files = find_head(demo_folder("hybrid"))
    head = read_head(files).dequantized()
    places = hybrid_places(hybrid_args(load_demo("hybrid")[0]), large)
    grown = attrs.evolve(head, weights=put_all(head.weights, places))
    write_head_checkpoint(drafter, grown, head_config(attrs.evolve(files, config=config), grown))
    return trunk, drafter


def load_saved(trunk: Path, drafter: Path) -> SpeculativeModel:
    """The same model and head, from the files: weights that were computed in this process may lie
    elsewhere in memory, and be read faster or slower, than those of a process that loaded them."""
    module, _ = load_model(trunk)
    model = cast(StockModel, module)
    # Growing made the gains of norms small, so that they look like what is stored without a 1.
    return adapt(model, head=load_mtp_head(drafter, model, norms="gains"))


def _module(model: SpeculativeModel) -> Module:
    return cast(Module, stock_of(model))
