"""The bundled models made larger, without changing what they compute.

A tiny model's forward is mostly overhead, and from a large random one nothing is accepted. So
trained weights are placed in larger tensors of zeros: same text, same drafts, real cost.

With `d` entries padded by zeros to `D`, `mean(x^2)` falls by `d / D`. An RMSNorm gives the same
if its eps falls alike, and its gains by `sqrt(d / D)`. Layers that are added write zeros.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3, qwen3_5

import speculate as sp
from benchmarks.padding import Place, put_all
from benchmarks.places import DenseArgs, HybridArgs, dense_places, head_width, hybrid_places
from speculate import SpeculativeModel
from speculate.checkpoints import find_head, read_head
from speculate.loading import demo_folder, stock_of
from speculate.models.mtp import build_head
from speculate.protocols import MTPHead, StockModel

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

HYBRIDS: Final = ((1024, 24), (2048, 12), (768, 12))
"""Sizes that are measured, hidden and layers: 234 M, 469 M and 63 M parameters."""

DENSE: Final = ((1024, 13), (384, 6))
"""Dense targets, for which the bundled draft model is always right: 165 M and 11 M."""

INTERVAL: Final = 4
"""Every fourth layer of a grown hybrid has full attention, as in published models."""

WRITERS: Final = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
"""What writes into the residual stream."""

LAYER: Final = re.compile(r"(?<=layers\.)\d+(?=\.)")


def grown_hybrid(hidden: int, layers: int) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """The bundled hybrid with its head, larger.

    Args:
        hidden: Width, at least the bundled model's 192.
        layers: At least 12: each pair of the bundled layers takes up four.
    """
    known, tokenizer = sp.load_demo("hybrid")
    small = hybrid_args(known)
    large = _larger_hybrid(small, hidden, layers)
    config = {"model_type": "qwen3_5", "text_config": dataclasses.asdict(large)}
    stock = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    places = hybrid_places(small, large)
    step = small.full_attention_interval
    _fill(stock, put_all(_spaced(_parameters(stock_of(known)), step), places))
    _set_inner_eps(stock, small, large)
    return _adapted(cast(StockModel, stock), known, _grown_head(stock, places)), tokenizer


def grown_draft(hidden: int, layers: int) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """The bundled draft model, larger. Drafts of one size are right for any other.

    Args:
        hidden: Width, a multiple of 128, from 1024 on of 256.
        layers: At least 2.
    """
    known, tokenizer = sp.load_demo("draft")
    small: DenseArgs = cast(qwen3.Model, stock_of(known)).args
    large = _larger_dense(small, hidden, layers)
    stock = qwen3.Model(large)
    _fill(stock, put_all(_parameters(stock_of(known)), dense_places(small, large)))
    _set_head_eps(stock, small, large)
    return _adapted(cast(StockModel, stock), known, None), tokenizer


def hybrid_args(model: SpeculativeModel) -> HybridArgs:
    """mlx-lm's arguments of a Qwen3.5."""
    args: HybridArgs = cast(qwen3_5.Model, stock_of(model)).language_model.args
    return args


def parameter_count(model: SpeculativeModel) -> int:
    """Numbers in a model, its head left out."""
    return sum(array.size for array in _parameters(stock_of(model)).values())


def _larger_hybrid(small: HybridArgs, hidden: int, layers: int) -> HybridArgs:
    wide, heads = 256, max(1, hidden // 1024)
    delta_width, delta_heads = 64, max(1, hidden // 512)
    rotated = head_width(small) * small.partial_rotary_factor
    rope = {**(small.rope_parameters or {}), "partial_rotary_factor": rotated / wide}
    return dataclasses.replace(
        small,
        hidden_size=hidden,
        num_hidden_layers=layers,
        full_attention_interval=INTERVAL,
        intermediate_size=2 * hidden,
        num_attention_heads=heads * small.num_attention_heads,
        num_key_value_heads=heads * small.num_key_value_heads,
        head_dim=wide,
        linear_num_key_heads=delta_heads * small.linear_num_key_heads,
        linear_num_value_heads=delta_heads * small.linear_num_value_heads,
        linear_key_head_dim=delta_width,
        linear_value_head_dim=delta_width,
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / hidden,
        rope_parameters=rope,
    )


def _larger_dense(small: DenseArgs, hidden: int, layers: int) -> DenseArgs:
    wide = small.head_dim * (2 if hidden >= 1024 else 1)
    heads = hidden // (wide * small.num_attention_heads)
    return dataclasses.replace(
        small,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=3 * hidden,
        num_attention_heads=heads * small.num_attention_heads,
        num_key_value_heads=heads * small.num_key_value_heads,
        head_dim=wide,
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / hidden,
    )


def _grown_head(stock: Module, places: Mapping[str, Place]) -> MTPHead:
    tensors = read_head(find_head(demo_folder("hybrid"))).dequantized()
    grown = attrs.evolve(tensors, weights=put_all(tensors.weights, places))
    return build_head(cast(StockModel, stock), grown)


def _adapted(stock: StockModel, known: SpeculativeModel, head: MTPHead | None) -> SpeculativeModel:
    return sp.adapt(
        stock, head=head, eos_token_ids=known.eos_token_ids, vocabulary=known.vocabulary
    )


def _spaced(tensors: Mapping[str, mx.array], step: int) -> dict[str, mx.array]:
    """Renumber layers so that the last of each `step` is the last of each `INTERVAL`."""

    def number(found: re.Match[str]) -> str:
        group, index = divmod(int(found[0]), step)
        return str(group * INTERVAL + (index if index < step - 1 else INTERVAL - 1))

    return {LAYER.sub(number, name): tensor for name, tensor in tensors.items()}


def _fill(model: Module, grown: Mapping[str, mx.array]) -> None:
    blank = _parameters(cast(StockModel, model))
    silent = {name: mx.zeros_like(blank[name]) for name in blank if name.endswith(WRITERS)}
    model.load_weights(list({**blank, **silent, **grown}.items()))
    model.eval()
    mx.eval(model.parameters())


def _set_inner_eps(model: Module, small: HybridArgs, large: HybridArgs) -> None:
    """The norms over a recurrent head read what fell with the root of both its widths."""
    before = small.linear_key_head_dim * small.linear_value_head_dim
    after = large.linear_key_head_dim * large.linear_value_head_dim
    for layer in model.layers:
        if layer.is_linear:
            layer.linear_attn.norm.eps = small.rms_norm_eps * before / after
    _set_head_eps(model, small, large)


def _set_head_eps(
    model: Module, small: DenseArgs | HybridArgs, large: DenseArgs | HybridArgs
) -> None:
    """The norms over a head's queries and keys, whose width need not grow as the model's."""
    for name, module in model.named_modules():
        if name.endswith(("q_norm", "k_norm")):
            module.eps = small.rms_norm_eps * head_width(small) / head_width(large)


def _parameters(stock: StockModel) -> dict[str, mx.array]:
    flat = tree_flatten(cast(Module, stock).parameters())
    return dict(cast("list[tuple[str, mx.array]]", flat))
