"""Tiny models and heads, and the many ways in which people store them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import qwen3_5, qwen3_5_moe, qwen3_next

from speculate.protocols import StockModel

Weights = dict[str, mx.array]

WIDTH, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, INNER, VOCABULARY = 64, 4, 2, 16, 4, 32, 96
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

TEXT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MOE: dict[str, Any] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
}
NEXT: dict[str, Any] = {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mlp_only_layers": []}


def config(family: str = "qwen3_5", **changes: Any) -> dict[str, Any]:
    """A config.json."""
    if family == "qwen3_next":
        return {"model_type": family, **TEXT, **MOE, **NEXT, **changes}
    text = {"model_type": f"{family}_text", **TEXT, **(MOE if family.endswith("moe") else {})}
    return {"model_type": family, "text_config": {**text, **changes}}


def make_model(family: str = "qwen3_5", **changes: Any) -> Any:
    """A model of mlx-lm with spread-out weights, float32."""
    module: Any = {"qwen3_5": qwen3_5, "qwen3_5_moe": qwen3_5_moe, "qwen3_next": qwen3_next}[family]
    model = module.Model(module.ModelArgs.from_dict(config(family, **changes)))
    shapes = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    fresh = [(name, draw(name, array.shape)) for name, array in shapes]
    model.update(tree_unflatten(fresh))
    model.eval()
    mx.eval(model.parameters())
    return model


def draw(name: str, shape: tuple[int, ...]) -> mx.array:
    """Random numbers that depend on the name alone."""
    key = mx.random.key(sum(ord(c) * (i + 7) for i, c in enumerate(name)))
    if "norm" in name and len(shape) == 1:
        return deltas(name, shape) + 1.0
    if name.endswith("A_log"):
        return mx.full(shape, -1.0)
    if name.endswith("conv1d.weight"):
        return mx.random.normal(shape, key=key) * (3 / math.sqrt(shape[1]))
    fan_in = shape[-1] if len(shape) > 1 else 1
    return mx.random.normal(shape, key=key) * (3 / math.sqrt(fan_in))


def deltas(name: str, shape: tuple[int, ...]) -> mx.array:
    """Norms as Hugging Face stores them."""
    key = mx.random.key(len(name) + sum(map(ord, name)))
    return mx.random.normal(shape, key=key) * 0.05 - 0.4


def make_head(*, experts: bool = False, layers: int = 1, inner: int = 96) -> Weights:
    """A head in the form that `read_head` brings all others to: the reference of the tests."""
    shapes: dict[str, tuple[int, ...]] = {"fc": (WIDTH, 2 * WIDTH), "norm": (WIDTH,)}
    shapes |= {"pre_fc_norm_embedding": (WIDTH,), "pre_fc_norm_hidden": (WIDTH,)}
    for index in range(layers):
        layer = f"layers.{index}"
        shapes |= {f"{layer}.{name}": shape for name, shape in _attention().items()}
        mlp = _experts() if experts else _dense("mlp", inner)
        shapes |= {f"{layer}.{name}": shape for name, shape in mlp.items()}
    return {f"{n}.weight": draw(f"mtp.{n}.weight", shape) for n, shape in shapes.items()}


def _attention() -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
        "self_attn.q_proj": (2 * HEADS * HEAD_DIM, WIDTH),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD_DIM),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
    }


def _dense(where: str, inner: int) -> dict[str, tuple[int, ...]]:
    shapes = ((inner, WIDTH), (inner, WIDTH), (WIDTH, inner))
    return {f"{where}.{name}": shape for name, shape in zip(PROJECTIONS, shapes, strict=True)}


def _experts() -> dict[str, tuple[int, ...]]:
    stacked = {n: (EXPERTS, *s) for n, s in _dense("mlp.switch_mlp", INNER).items()}
    router = {"mlp.gate": (EXPERTS, WIDTH), "mlp.shared_expert_gate": (1, WIDTH)}
    return {**router, **stacked, **_dense("mlp.shared_expert", INNER)}


# How heads are stored.


def raw(head: Mapping[str, mx.array]) -> Weights:
    """Norms as Hugging Face stores them: bit for bit what the gains were made of."""

    def convert(name: str, array: mx.array) -> mx.array:
        return deltas(f"mtp.{name}", array.shape) if "norm" in name else array

    return {name: convert(name, array) for name, array in head.items()}


def prefixed(head: Mapping[str, mx.array], prefix: str = "mtp.") -> Weights:
    """Names as in a checkpoint."""
    return {prefix + name: array for name, array in head.items()}


def fused(head: Mapping[str, mx.array]) -> Weights:
    """Experts as Qwen3.5's: gate and up in one tensor, names without `.weight`."""
    out = {name: array for name, array in head.items() if ".switch_mlp." not in name}
    for name, array in head.items():
        if name.endswith(".switch_mlp.gate_proj.weight"):
            where = name.removesuffix(".switch_mlp.gate_proj.weight")
            up = head[f"{where}.switch_mlp.up_proj.weight"]
            out[f"{where}.experts.gate_up_proj"] = mx.concatenate([array, up], axis=1)
            out[f"{where}.experts.down_proj"] = head[f"{where}.switch_mlp.down_proj.weight"]
    return out


def single(head: Mapping[str, mx.array]) -> Weights:
    """Experts one by one."""
    out = {name: array for name, array in head.items() if ".switch_mlp." not in name}
    for name, array in head.items():
        if ".switch_mlp." in name:
            where, rest = name.split(".switch_mlp.")
            out |= {f"{where}.experts.{e}.{rest}": array[e] for e in range(array.shape[0])}
    return out


def quantised(head: Mapping[str, mx.array], choice: Mapping[str, tuple[int, int, str]]) -> Weights:
    """Pack the matrices of some modules; `choice` gives bits, group and mode by module."""
    out = dict(head)
    for module, (bits, group, mode) in choice.items():
        weight, scales, *biases = mx.quantize(head[f"{module}.weight"], group, bits, mode=mode)
        out |= {f"{module}.weight": weight, f"{module}.scales": scales}
        out |= {f"{module}.biases": bias for bias in biases}
    return out


def matrices(head: Mapping[str, mx.array]) -> list[str]:
    """The modules that mlx-lm would quantise."""
    return [n.removesuffix(".weight") for n, array in head.items() if array.ndim > 1]


# How folders are laid out.


def trunk_weights(model: Any, *, stored_raw: bool = False) -> Weights:
    """A model's weights as mlx-lm saves them, or as Hugging Face publishes them."""
    weights = dict(cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())))
    if not stored_raw:
        return weights
    suffixes = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
    for name, array in weights.items():
        if name.endswith("conv1d.weight"):
            weights[name] = array.moveaxis(1, 2)
        if name.endswith(suffixes):
            weights[name] = deltas(name, array.shape)
    return weights


def write(folder: Path, files: Mapping[str, Mapping[str, mx.array]], **options: Any) -> Path:
    """A checkpoint's folder.

    Args:
        folder: Made if need be.
        files: Tensors by file name.
        options: `config` for config.json, `listed` for the files that the index knows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, weights in files.items():
        mx.save_safetensors(str(folder / name), dict(weights), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(options.get("config", config())))
    listed: Iterable[str] | None = options.get("listed")
    if listed is not None:
        names = {name: file for file in listed for name in files[file]}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


def rows(count: int, seed: int = 3) -> tuple[mx.array, mx.array]:
    """Hidden states `(1, count, WIDTH)` and tokens `(1, count)`."""
    key, other = mx.random.split(mx.random.key(seed))
    hidden = mx.random.normal((1, count, WIDTH), key=key)
    return hidden, mx.random.randint(0, VOCABULARY, (1, count), key=other)


def as_stock(model: Any) -> StockModel:
    """The same, for the type checker."""
    return cast(StockModel, model)
