"""Quantised heads: what is read equals what quantising the reference gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from speculate.checkpoints import HeadTensors, find_head, read_head
from speculate.errors import CheckpointError
from speculate.models.mtp_head import QwenMTPHead, build_head
from tests.checkpoints import tiny

Choice = dict[str, tuple[int, int, str]]

DENSE = tiny.matrices(tiny.make_head())
MIXED: Choice = {
    "fc": (6, 64, "affine"),
    "layers.0.self_attn.q_proj": (4, 32, "affine"),
    "layers.0.self_attn.o_proj": (8, 64, "affine"),
    "layers.0.mlp.gate_proj": (4, 64, "affine"),
    "layers.0.mlp.down_proj": (3, 32, "affine"),
    "layers.0.self_attn.v_proj": (8, 32, "mxfp8"),
}
CHOICES: dict[str, Choice] = {
    **{f"{b} bits": dict.fromkeys(DENSE, (b, 32, "affine")) for b in (1, 2, 3, 4, 5, 6, 8)},
    "groups of 128": {"fc": (4, 128, "affine")},
    "mxfp4": dict.fromkeys(DENSE, (4, 32, "mxfp4")),
    "mxfp8": dict.fromkeys(DENSE, (8, 32, "mxfp8")),
    "nvfp4": dict.fromkeys(DENSE, (4, 16, "nvfp4")),
    "mixed, some layers plain": MIXED,
}


def read(path: Path, stored: Mapping[str, mx.array]) -> HeadTensors:
    return read_head(find_head(tiny.write(path, {"mtp.safetensors": tiny.prefixed(stored)})))


def logits(head: object) -> mx.array:
    known = cast(QwenMTPHead, head)
    return known.step(*tiny.rows(6), known.make_cache()).logits


def check(
    path: Path, family: str, plain: tiny.Weights, stored: tiny.Weights, choice: Choice
) -> None:
    """Read `stored`, and compare it with a plain head that is quantised in memory."""
    model, tensors = tiny.as_stock(tiny.make_model(family)), read(path, stored)
    found = {m: (q.bits, q.group_size, q.mode) for m, q in tensors.quantization.items()}
    assert found == choice
    reference = cast(QwenMTPHead, build_head(model, HeadTensors(plain, {}, (), (), ())))

    def chosen(name: str, _: nn.Module) -> dict[str, object] | bool:
        packing = choice.get(name)
        return packing is not None and dict(
            zip(("bits", "group_size", "mode"), packing, strict=True)
        )

    nn.quantize(cast(nn.Module, reference._module), class_predicate=chosen)
    assert bool(mx.array_equal(logits(build_head(model, tensors)), logits(reference)))


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("raw", [True, False], ids=["raw norms", "gains"])
def test_every_packing(tmp_path: Path, choice: Choice, raw: bool) -> None:
    head = tiny.make_head()
    packed = tiny.quantised(tiny.raw(head) if raw else head, choice)
    check(tmp_path, "qwen3_5", head, packed, choice)


@pytest.mark.parametrize("layout", ["fused", "single", "stacked"])
@pytest.mark.parametrize("packing", [(4, 32, "affine"), (4, 32, "mxfp4")])
def test_quantised_experts_in_every_layout(
    tmp_path: Path, layout: str, packing: tuple[int, int, str]
) -> None:
    head = tiny.make_head(experts=True)
    choice = dict.fromkeys(tiny.matrices(head), packing)
    # As mlx-lm does: a router stays finer than the rest.
    choice |= {"layers.0.mlp.gate": (8, 64, "affine")}
    packed = tiny.quantised(head, choice)
    if layout == "single":
        packed = tiny.single(packed)
    if layout == "fused":
        packed = fused_parts(packed)
    check(tmp_path, "qwen3_5_moe", head, packed, choice)


def fused_parts(packed: tiny.Weights) -> tiny.Weights:
    base = "layers.0.mlp"
    out = {n: a for n, a in packed.items() if ".switch_mlp." not in n}
    for part in ("weight", "scales", "biases"):
        names = [f"{base}.switch_mlp.{p}.{part}" for p in tiny.PROJECTIONS]
        if names[0] in packed:
            gate, up, down = (packed[name] for name in names)
            out[f"{base}.experts.gate_up_proj.{part}"] = mx.concatenate([gate, up], axis=1)
            out[f"{base}.experts.down_proj.{part}"] = down
    return out


def parameters(module: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def test_experts_with_a_scale_of_their_own(tmp_path: Path) -> None:
    head = tiny.make_head(experts=True)
    model, stored = tiny.as_stock(tiny.make_model("qwen3_5_moe")), dict(head)
    name = "layers.0.mlp.switch_mlp.up_proj"
    peaks = mx.abs(head[f"{name}.weight"]).max(axis=(1, 2))
    pairs = [
        mx.quantize(matrix, mode="nvfp4", global_scale=peak)
        for matrix, peak in zip(head[f"{name}.weight"], peaks, strict=True)
    ]
    stored[f"{name}.weight"] = mx.stack([pair[0] for pair in pairs])
    stored[f"{name}.scales"] = mx.stack([pair[1] for pair in pairs])
    stored[f"{name}.global_scale"] = peaks
    tensors = read(tmp_path, stored)
    assert tensors.quantization[name].global_scale
    reference = cast(QwenMTPHead, build_head(model, HeadTensors(head, {}, (), (), ())))

    def chosen(path: str, _: nn.Module) -> dict[str, object] | bool:
        how = {"bits": 4, "group_size": 16, "mode": "nvfp4", "global_scale": True}
        return how if path == name else False

    nn.quantize(cast(nn.Module, reference._module), class_predicate=chosen)
    # mlx multiplies with such a scale on a GPU only, so what is multiplied is compared.
    found = cast(QwenMTPHead, build_head(model, tensors))
    mine, other = (parameters(cast(nn.Module, one._module)) for one in (found, reference))
    assert mine.keys() == other.keys()
    assert all(bool(mx.array_equal(mine[key], array)) for key, array in other.items())


def test_scales_that_are_powers_of_two(tmp_path: Path) -> None:
    head = tiny.make_head()
    packed, scales = fp8(head["fc.weight"], 32)
    powers = mx.full(scales.shape, 124, dtype=mx.uint8)
    stored = {**head, "fc.weight": packed, "fc.weight_scale_inv": powers}
    config = {**tiny.config(), "quantization_config": {"weight_block_size": [32, 32]}}
    folder = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(stored)}, config=config)
    expected = mx.from_fp8(packed, mx.float32) * 2.0**-3
    assert bool(mx.array_equal(read_head(find_head(folder)).weights["fc.weight"], expected))


def fp8(matrix: mx.array, block: int) -> tuple[mx.array, mx.array]:
    """A matrix in blocks of 8-bit floats, and the inverse scale of each."""
    rows, columns = (-(-side // block) for side in matrix.shape[-2:])
    scales = mx.arange(1, rows * columns + 1).reshape(rows, columns).astype(mx.float32) / 64
    scales = mx.broadcast_to(scales, (*matrix.shape[:-2], rows, columns))
    wide = mx.repeat(mx.repeat(scales, block, -2), block, -1)
    wide = wide[..., : matrix.shape[-2], : matrix.shape[-1]]
    return mx.to_fp8(matrix / wide), scales


@pytest.mark.parametrize("block", [128, 32, 48])
@pytest.mark.parametrize("experts", [None, tiny.fused, tiny.single])
def test_blocks_of_8_bit_floats_are_made_plain(tmp_path: Path, block: int, experts: object) -> None:
    head = tiny.make_head(experts=experts is not None)
    layout = experts if callable(experts) else dict
    stored: tiny.Weights = {}
    expected: tiny.Weights = {}
    for name, array in cast(tiny.Weights, layout(head)).items():
        if array.ndim < 2 or ".gate.weight" in name:
            stored[name] = expected[name] = array
            continue
        stored[name], stored[f"{name}_scale_inv"] = packed, scales = fp8(array, block)
        wide = mx.repeat(mx.repeat(scales, block, -2), block, -1)
        wide = wide[..., : array.shape[-2], : array.shape[-1]]
        expected[name] = mx.from_fp8(packed, mx.float32) * wide
    config = {**tiny.config(), "quantization_config": {"weight_block_size": [block, block]}}
    folder = tiny.write(tmp_path / "fp8", {"mtp.safetensors": tiny.prefixed(stored)}, config=config)
    plain = read(tmp_path / "plain", expected)
    found = read_head(find_head(folder))
    assert found.weights.keys() == plain.weights.keys()
    assert all(bool(mx.array_equal(found.weights[n], a)) for n, a in plain.weights.items())


def test_a_packing_that_mlx_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    head = tiny.make_head()
    packed = tiny.quantised(head, {"fc": (4, 32, "affine")})
    without = {n: a for n, a in packed.items() if n != "fc.biases"}
    with pytest.raises(CheckpointError, match=r"mtp\.safetensors: fc: affine needs biases"):
        read(tmp_path / "1", without)
    with pytest.raises(CheckpointError, match=r"fc: .* no packing"):
        read(tmp_path / "2", {**packed, "fc.scales": mx.zeros((64, 5))})
    with pytest.raises(CheckpointError, match=r"fc: has .* scales, and needs"):
        read(tmp_path / "3", {**packed, "fc.scales": mx.zeros((8, 4))})
    with pytest.raises(CheckpointError, match=r"fc: .*uint32 is no type for scales and biases"):
        read(tmp_path / "6", {**packed, "fc.biases": packed["fc.biases"].astype(mx.uint32)})
    with pytest.raises(CheckpointError, match=r"fc\.weight: is .*uint8"):
        read(tmp_path / "4", {**head, "fc.weight": mx.zeros((64, 128), dtype=mx.uint8)})
    odd = {**head, "fc.weight_scale_inv": mx.ones((1, 1))}
    with pytest.raises(CheckpointError, match=r"fc\.weight: has scales for blocks"):
        read(tmp_path / "5", odd)
