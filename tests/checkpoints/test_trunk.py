"""Trunks whose folder kept the head: also those that stock mlx-lm refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_next
from mlx_lm.utils import load_model

from speculate.checkpoints import find_head, load_trunk, read_head
from speculate.models.mtp import build_head
from tests.support import checkpoint_files as tiny

NEXT = tiny.config("qwen3_next")


def write(folder: Path, weights: tiny.Weights, config: dict[str, Any] = NEXT) -> Path:
    return tiny.write(folder, {"model.safetensors": weights}, config=config)


def parameters(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp."])
def test_a_converted_qwen3_next_that_kept_its_head(tmp_path: Path, prefix: str) -> None:
    model, head = tiny.make_model("qwen3_next"), tiny.make_head(experts=True)
    trunk = tiny.trunk_weights(model)
    folder = write(tmp_path / "both", {**trunk, **tiny.prefixed(head, prefix)})
    with pytest.raises(ValueError, match="parameters not in model"):
        load_model(folder)
    loaded, config = load_trunk(folder)
    assert config["model_type"] == "qwen3_next"
    assert type(loaded) is qwen3_next.Model
    plain = parameters(load_model(write(tmp_path / "plain", trunk))[0])
    found = parameters(loaded)
    assert found.keys() == plain.keys()
    assert all(bool(mx.array_equal(found[name], plain[name])) for name in plain)
    tokens = tiny.rows(5)[1]
    assert bool(mx.array_equal(loaded(tokens), model(tokens)))
    attached = build_head(loaded, read_head(find_head(folder)))
    reference = build_head(tiny.as_stock(model), read_head(find_head(folder)))
    outs = [one.step(*tiny.rows(5), one.make_cache()).logits for one in (attached, reference)]
    assert bool(mx.array_equal(outs[0], outs[1]))


def test_a_quantised_one(tmp_path: Path) -> None:
    model, head = tiny.make_model("qwen3_next"), tiny.make_head(experts=True)
    choice = dict.fromkeys(tiny.matrices(head), (4, 32, "affine"))
    tokens = tiny.rows(5)[1]
    nn.quantize(model, group_size=32, bits=4)
    stored = {**tiny.trunk_weights(model), **tiny.prefixed(tiny.quantised(head, choice))}
    config = {**NEXT, "quantization": {"group_size": 32, "bits": 4}}
    loaded = load_trunk(write(tmp_path, stored, config))[0]
    assert bool(mx.array_equal(loaded(tokens), model(tokens)))
    assert read_head(find_head(tmp_path)).quantization.keys() == choice.keys()


def test_the_stock_class_is_left_alone(tmp_path: Path) -> None:
    before = dict(vars(qwen3_next.Model))
    load_trunk(write(tmp_path, tiny.trunk_weights(tiny.make_model("qwen3_next"))))
    assert dict(vars(qwen3_next.Model)) == before


def test_other_families_load_as_ever(tmp_path: Path) -> None:
    model = tiny.make_model()
    folder = tiny.write(tmp_path, {"model.safetensors": tiny.trunk_weights(model)})
    loaded, _ = load_trunk(folder, lazy=True)
    tokens = tiny.rows(5)[1]
    assert bool(mx.array_equal(loaded(tokens), model(tokens)))
