"""Builds that people have published and reported on, in small: as many tensors, the same head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

import speculate as sp
from speculate.checkpoints import HeadTensors, Quantization, find_head
from speculate.models.adapter import StockAdapter
from speculate.models.mtp import build_head
from speculate.protocols import MTPHead
from tests.support import checkpoint_files as tiny
from tests.support import reference as kit
from tests.support import tokenizers as words

Choice = Mapping[str, tuple[int, int, str]]
MANY = 256
"""Experts of the builds that list them one by one."""


@attrs.frozen(eq=False)
class Build:
    """A published build.

    Attributes:
        tensors: How many of a head were reported.
        head: The head before it was packed, in the reader's form.
        choice: Bits, group and mode of what is packed.
        layout: How what is packed is then stored.
        prefix: Before the names.
        file: Where it lies.
        listed: Whether the index knows.
        family: Of the trunk.
        packing: Bits, group and mode of the trunk.
        config: Of the whole.
    """

    tensors: int
    head: Callable[[], tiny.Weights]
    choice: Choice = attrs.field(factory=dict)
    layout: Callable[[tiny.Weights], tiny.Weights] = dict
    prefix: str = "mtp."
    file: str = "mtp.safetensors"
    listed: bool = True
    family: str = "qwen3_5"
    packing: tuple[int, int, str] | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def text(self) -> dict[str, Any]:
        """Changes to the text model's config."""
        return {"num_experts": MANY} if self.layout is tiny.single else {}


ATTENTION = [f"layers.0.self_attn.{part}_proj" for part in "qkvo"]
ROUTERS = ["layers.0.mlp.gate", "layers.0.mlp.shared_expert_gate"]
DENSE = tiny.matrices(tiny.make_head())
SPARSE = tiny.matrices(tiny.make_head(experts=True))


def packed(modules: list[str], bits: int = 4, group: int = 32) -> Choice:
    return dict.fromkeys(modules, (bits, group, "affine"))


def dense() -> tiny.Weights:
    return tiny.make_head()


def sparse() -> tiny.Weights:
    return tiny.make_head(experts=True)


def many_experts() -> tiny.Weights:
    def widened(name: str, array: mx.array) -> mx.array:
        if ".switch_mlp." in name:
            return tiny.draw(name, (MANY, *array.shape[1:]))
        return tiny.draw(name, (MANY, tiny.WIDTH)) if name.endswith("mlp.gate.weight") else array

    return {name: widened(name, array) for name, array in sparse().items()}


def fused(head: tiny.Weights) -> tiny.Weights:
    """Experts as `gate_up_proj`, in as many parts as the packing has."""
    mlp = "layers.0.mlp"
    out = {name: array for name, array in head.items() if ".switch_mlp." not in name}
    for part in ("weight", "scales", "biases"):
        gate, up, down = (head[f"{mlp}.switch_mlp.{p}.{part}"] for p in tiny.PROJECTIONS)
        out[f"{mlp}.experts.gate_up_proj.{part}"] = mx.concatenate([gate, up], axis=1)
        out[f"{mlp}.experts.down_proj.{part}"] = down
    return out


def layer_norms_raw(head: tiny.Weights) -> tiny.Weights:
    """The trunk and `mtp.norm` were converted, the rest of the head was forgotten."""
    return {**tiny.raw(head), "norm.weight": head["norm.weight"]}


AWQ = {
    **packed(["fc"], 6, 64), **packed(ATTENTION[:2]), **packed(ATTENTION[2:], 8),
    **packed(DENSE[-3:-1]), **packed(DENSE[-1:], 8),
}  # fmt: skip
OF_ITS_OWN = {"mtplx_mtp_quantization": {"bits": 4, "group_size": 64, "prequantized": True}}
BUILDS: dict[str, Build] = {
    "OptiQ, not in the index": Build(
        37, sparse, packed([m for m in SPARSE if m not in ("fc", *ROUTERS)]), fused,
        listed=False, family="qwen3_5_moe", packing=(4, 32, "affine"),
    ),
    "experts one by one, in a file beside": Build(
        785, many_experts, layout=tiny.single, family="qwen3_5_moe"
    ),
    "experts one by one, each in three parts": Build(
        17 + 3 * MANY * 3, many_experts, packed([m for m in SPARSE if "switch_mlp" in m]),
        layout=tiny.single, family="qwen3_5_moe",
    ),
    "a multimodal conversion, 4 bits": Build(
        42, sparse, packed([m for m in SPARSE if m not in ROUTERS]), dict,
        "language_model.mtp.", "model.safetensors", family="qwen3_5_moe",
        packing=(4, 32, "affine"),
    ),
    "a multimodal conversion, plain under nvfp4": Build(
        20, sparse, {}, dict, "language_model.mtp.", "model.safetensors",
        family="qwen3_5_moe", packing=(4, 16, "nvfp4"),
    ),
    "AWQ with 6, 4 and 8 bits": Build(
        31, dense, AWQ, file="model.safetensors", packing=(5, 32, "affine")
    ),
    "5 bits": Build(31, dense, packed(DENSE, 5), packing=(5, 32, "affine")),
    "a dense head under experts, with a config key of its own": Build(
        31, lambda: tiny.make_head(inner=128), packed(DENSE, 8), family="qwen3_5_moe",
        packing=(4, 32, "affine"), config=OF_ITS_OWN,
    ),
    "converted but for the norms of the head's layer": Build(
        15, dense, {}, layer_norms_raw, packing=(4, 32, "mxfp4")
    ),
    "an index that was rewritten without the head": Build(
        31, dense, packed(DENSE), file="model-mtp-of-00005.safetensors", listed=False
    ),
    "Qwen3-Next, converted, in the same file": Build(
        20, sparse, {}, dict, file="model.safetensors", family="qwen3_next"
    ),
    "two layers": Build(26, lambda: tiny.make_head(layers=2)),
}  # fmt: skip


def trunk(build: Build) -> tuple[Any, dict[str, Any]]:
    """A model of mlx-lm, packed as the build is, and its config."""
    model = tiny.make_model(build.family, **build.text)
    config = {**tiny.config(build.family, **build.text), **build.config}
    if build.packing:
        bits, group, mode = build.packing
        entry = {"bits": bits, "group_size": group, "mode": mode}
        nn.quantize(model, group, bits, mode=mode)
        config["quantization"] = config["quantization_config"] = entry
    return model, config


def reference(stock: Any, build: Build) -> MTPHead:
    """The head, packed in memory."""
    packings = {name: Quantization(*how) for name, how in build.choice.items()}
    weights = tiny.quantised(build.head(), build.choice)
    return build_head(tiny.as_stock(stock), HeadTensors(weights, packings, (), (), ()))


def logits(head: MTPHead | None) -> mx.array:
    assert head is not None
    return head.step(*tiny.rows(6), head.make_cache()).logits


def parameters(model: object) -> dict[str, mx.array]:
    assert isinstance(model, StockAdapter)
    return dict(tree_flatten(model.stock.parameters()))  # type: ignore[attr-defined]


def write(folder: Path, files: Mapping[str, tiny.Weights], **options: Any) -> Path:
    words.fast_tokenizer().save_pretrained(folder)
    return tiny.write(folder, files, **options)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_published_build_loads_as_what_it_was_made_of(tmp_path: Path, build: Build) -> None:
    stock, config = trunk(build)
    weights = tiny.trunk_weights(stock)
    stored = tiny.prefixed(build.layout(tiny.quantised(build.head(), build.choice)), build.prefix)
    files: dict[str, tiny.Weights] = {"model.safetensors": weights}
    files[build.file] = {**files.get(build.file, {}), **stored}
    listed = list(files) if build.listed else ["model.safetensors"]
    folder = write(tmp_path / "whole", files, config=config, listed=listed)
    plain = write(tmp_path / "plain", {"model.safetensors": weights}, config=config)
    assert len(find_head(folder).tensors) == build.tensors
    model, _ = sp.load(folder)
    assert bool(mx.array_equal(logits(model.head), logits(reference(stock, build))))
    without, _ = sp.load(plain)
    assert without.head is None
    found, expected = parameters(model), parameters(without)
    assert found.keys() == expected.keys()
    assert all(bool(mx.array_equal(found[name], array)) for name, array in expected.items())


def test_an_original_in_blocks_of_8_bit_floats_serves_a_converted_trunk(tmp_path: Path) -> None:
    head, scale = dense(), mx.array([[0.5]])
    stored, plain = dict(tiny.raw(head)), dict(head)
    for module in DENSE[1:]:
        name = f"{module}.weight"
        stored[name], stored[f"{name}_scale_inv"] = mx.to_fp8(head[name] / scale), scale
        plain[name] = mx.from_fp8(stored[name], mx.float32) * scale
    folder = tiny.write(tmp_path, {"model-00001.safetensors": tiny.prefixed(stored)})
    assert len(find_head(folder).tensors) == 22
    stock = tiny.make_model()
    found = sp.load_mtp_head(folder, tiny.as_stock(stock))
    assert bool(mx.array_equal(logits(found), logits(reference(stock, Build(15, lambda: plain)))))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_drafter_of_4_bits_serves_trunks_of_any(tmp_path: Path, bits: int, family: str) -> None:
    head = sparse if family == "qwen3_next" else dense
    # A projection of 96 or 32 columns has no group of 64, and stays plain.
    modules = [m for m in tiny.matrices(head()) if head()[f"{m}.weight"].shape[-1] % 64 == 0]
    choice = packed(modules, 4, 64)
    build = Build(0, head, choice, family=family, packing=(bits, 32, "affine"))
    stock, config = trunk(build)
    weights = {"model.safetensors": tiny.trunk_weights(stock)}
    folder = write(tmp_path / "trunk", weights, config=config)
    described = {"model_type": "qwen3_5_mtp", "block_size": 3, "tie_word_embeddings": False}
    text = tiny.config(family).get("text_config", tiny.config(family))
    described |= {"text_config": text, "quantization": {"group_size": 64, "bits": 4}}
    stored = {"model.safetensors": tiny.quantised(head(), choice)}
    drafter = tiny.write(tmp_path / "drafter", stored, config=described, listed=list(stored))
    shapes = {n: find_head(drafter).tensors[n].shape for n in ("fc.weight", "fc.scales")}
    assert shapes == {
        "fc.weight": (tiny.WIDTH, tiny.WIDTH // 4), "fc.scales": (tiny.WIDTH, tiny.WIDTH // 32)
    }  # fmt: skip
    model, _ = sp.load(folder, head=drafter)
    assert bool(mx.array_equal(logits(model.head), logits(reference(stock, build))))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_a_packed_output_matrix_is_used_as_it_is(tmp_path: Path, mode: str) -> None:
    packing = {"mxfp4": (4, 32, mode), "mxfp8": (8, 32, mode), "nvfp4": (4, 16, mode)}[mode]
    stock, config = trunk(Build(15, dense, packing=packing))
    weights = {**tiny.trunk_weights(stock), **tiny.prefixed(dense())}
    model, _ = sp.load(write(tmp_path, {"model.safetensors": weights}, config=config))
    runs = [sp.Decoder(model, how) for how in (sp.Fixed(sp.MTPChain(), 2), sp.Off())]
    texts = [kit.ids_of(one.generate(kit.PROMPT, 12, stop_tokens=())) for one in runs]
    assert texts[0] == texts[1]
    assert runs[0].stats.draft_tokens > 0


@pytest.mark.parametrize("top", [True, False, None])
@pytest.mark.parametrize("inner", [True, False, None])
def test_head_and_target_agree_wherever_embeddings_are_said_to_be_tied(
    tmp_path: Path, top: bool | None, inner: bool | None
) -> None:
    stock = tiny.make_model(tie_word_embeddings=bool(inner))
    config = tiny.config()
    for level, tied in ((config, top), (config["text_config"], inner)):
        level.pop("tie_word_embeddings", None)
        level.update({} if tied is None else {"tie_word_embeddings": tied})
    weights = {**tiny.trunk_weights(stock), **tiny.prefixed(dense())}
    folder = write(tmp_path, {"model.safetensors": weights}, config=config)
    model, _ = sp.load(folder)
    assert ("language_model.lm_head.weight" in parameters(model)) is not bool(inner)
    assert bool(mx.array_equal(logits(model.head), logits(reference(stock, Build(15, dense)))))
    target = model.forward(tiny.rows(5)[1], model.make_cache()).logits
    assert bool(mx.array_equal(target, stock(tiny.rows(5)[1])))
