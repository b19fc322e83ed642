"""Quantised heads: what is read equals what quantising the reference gives."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from speculate.checkpoints import HeadTensors, find_head, read_head, summarize_head
from speculate.checkpoints.quantization import matrix_of
from speculate.errors import CheckpointError
from speculate.models.mtp import QwenMTPHead, build_head
from tests.support import checkpoint_files as tiny

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
    with pytest.raises(CheckpointError, match=f"{name}: has a scale for each expert"):
        tensors.dequantized()
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


def test_scales_without_columns_are_refused(tmp_path: Path) -> None:
    head = tiny.make_head()
    packed, _ = fp8(head["fc.weight"], 32)
    empty = mx.zeros((packed.shape[0], 0))
    with pytest.raises(CheckpointError, match=r"fc\.weight: has scales that fit neither"):
        read(tmp_path, {**head, "fc.weight": packed, "fc.weight_scale_inv": empty})


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


SCALES: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {
    "one, of no axis": ((), (64, 128)),
    "one": ((1,), (64, 128)),
    "one of two axes": ((1, 1), (64, 128)),
    "one a row": ((64, 1), (1, 128)),
    "one a row, of one axis": ((64,), (1, 128)),
    "groups of a row": ((64, 4), (1, 32)),
    "blocks": ((2, 3), (48, 48)),
}
"""Shapes of the scales of `fc.weight`, `(64, 128)`, and the block that each is a factor of."""


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize(("shape", "block"), SCALES.values(), ids=SCALES)
def test_scales_of_8_bit_floats_by_either_name_and_in_every_shape(
    tmp_path: Path, name: str, shape: tuple[int, ...], block: tuple[int, int]
) -> None:
    """By both names they are factors: `weight_scale_inv` is no divisor either."""
    head = tiny.make_head()
    scales = (mx.random.uniform(0.5, 2.0, shape, key=mx.random.key(1)) / 64).astype(mx.bfloat16)
    packed = mx.to_fp8(head["fc.weight"] * 64)
    config = {**tiny.config(), "quantization_config": {"weight_block_size": [48, 48]}}
    stored = {**head, "fc.weight": packed, f"fc.{name}": scales}
    folder = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(stored)}, config=config)
    found = read_head(find_head(folder))
    assert not found.unknown_tensors
    factors = scales.astype(mx.float32).reshape((*shape, 1, 1)[: max(2, len(shape))])
    for axis, side in enumerate(block):
        factors = mx.repeat(factors, side, axis)
    expected = mx.from_fp8(packed, mx.float32) * factors[:64, :128]
    assert bool(mx.array_equal(found.weights["fc.weight"], expected))


@pytest.mark.parametrize("shape", [(), (4,), (4, 1), (4, 1, 1), (4, 32), (4, 32, 1)])
@pytest.mark.parametrize("layout", [tiny.fused, dict])
def test_experts_may_have_such_scales(
    tmp_path: Path, shape: tuple[int, ...], layout: Callable[[tiny.Weights], tiny.Weights]
) -> None:
    """Experts, stacked or with two matrices fused: one scale for all, one for each, or by rows."""
    head = layout(tiny.make_head(experts=True))
    name = next(n for n in head if "gate_up_proj" in n or "switch_mlp.gate_proj" in n)
    count, rows, _ = head[name].shape
    shape = tuple(rows if side == 32 else side for side in shape)
    scales = mx.random.uniform(0.5, 2.0, shape, key=mx.random.key(1)) / 64
    packed = mx.to_fp8(head[name] * 64)
    found = read(tmp_path / "1", {**head, name: packed, f"{name}_scale": scales})
    factors = scales.reshape((*shape, 1, 1, 1)[:3]) if shape else scales
    factors = mx.broadcast_to(factors, (count, rows if rows in shape else 1, 1))
    wanted = read(tmp_path / "2", {**head, name: mx.from_fp8(packed, mx.float32) * factors})
    assert all(bool(mx.array_equal(found.weights[n], a)) for n, a in wanted.weights.items())


def test_an_experts_global_scale_is_no_scale_of_8_bit_floats() -> None:
    for name in ("fc.global_scale", "layers.0.mlp.experts.gate_up_proj_global_scale"):
        assert matrix_of(name) is None
    assert matrix_of("layers.0.mlp.experts.gate_up_proj_scale_inv") is not None
    assert matrix_of("layers.0.mlp.experts.3.up_proj.weight_scale") is not None


def raw_file(
    path: Path, head: Mapping[str, mx.array], odd: Mapping[str, tuple[str, list[int]]]
) -> Path:
    """A file of a head with tensors of types that mlx does not write, all zeros."""
    folder = tiny.write(path, {"mtp.safetensors": tiny.prefixed(head)})
    content = (folder / "mtp.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    described, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    for name, (dtype, shape) in odd.items():
        size = math.prod(shape) * {"F32": 4, "I32": 4, "BF16": 2}.get(dtype, 1)
        span = [len(data), len(data) + size]
        described[f"mtp.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": span}
        data += bytes(size)
    text = json.dumps(described).encode()
    (folder / "mtp.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


ODD: dict[str, dict[str, tuple[str, list[int]]]] = {
    "4-bit floats, scales of 8 bits": {
        "fc.weight": ("U8", [64, 64]),
        "fc.weight_scale": ("F8_E4M3", [64, 8]),
        "fc.weight_scale_2": ("F32", []),
    },
    "4-bit floats, scales that are exponents": {
        "fc.weight": ("U8", [64, 64]),
        "fc.weight_scale": ("F8_E8M0", [64, 4]),
    },
    "8-bit integers": {"fc.weight": ("I8", [64, 128]), "fc.weight_scale": ("BF16", [64, 1])},
    "packed integers": {
        "fc.weight_packed": ("I32", [64, 16]),
        "fc.weight_scale": ("BF16", [64, 4]),
    },
    "other 8-bit floats": {"fc.weight": ("F8_E5M2", [64, 128]), "fc.weight_scale": ("F32", [1])},
    "no scales": {"fc.weight": ("F8_E4M3", [64, 128])},
    "scales by another name": {"fc.weight": ("F8_E4M3", [64, 128]), "fc.factor": ("F32", [64, 1])},
    "scales of another matrix": {
        "fc.weight": ("F8_E4M3", [64, 128]),
        "fc.weight_scale": ("F32", [64, 3]),
    },
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_packing_that_is_not_supported_is_described(
    tmp_path: Path, odd: dict[str, tuple[str, list[int]]]
) -> None:
    head = {name: array for name, array in tiny.make_head().items() if name != "fc.weight"}
    with pytest.raises(CheckpointError) as caught:
        read_head(find_head(raw_file(tmp_path, head, odd)))
    said = str(caught.value)
    assert "mtp.safetensors" in said or str(tmp_path) in said
    assert "Supported are plain floats" in said and "weight_scale" in said
    for name, (dtype, shape) in odd.items():
        if "F8_E5M2" not in str(odd) or name == "fc.weight":
            assert name in said and dtype in said and str(tuple(shape)) in said


def test_a_published_8_bit_head_is_read_and_described(tmp_path: Path) -> None:
    """With the type that such files have: mlx itself writes bytes."""
    head = {name: array for name, array in tiny.make_head().items() if name != "fc.weight"}
    odd = {"fc.weight": ("F8_E4M3", [64, 128]), "fc.weight_scale": ("F32", [64, 1])}
    files = find_head(raw_file(tmp_path, head, odd))
    assert summarize_head(files).blocks == 1 and not summarize_head(files).unknown_tensors
    assert not mx.any(read_head(files).weights["fc.weight"])


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
