"""`speculate convert`: what mlx-lm writes, and the head beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.convert import convert

import speculate as sp
from speculate.checkpoints import HeadTensors, Quantization, find_head, read_head
from speculate.errors import CheckpointError
from speculate.models.mtp import QwenMTPHead, build_head
from tests.support import checkpoint_files as tiny
from tests.support import tokenizers
from tests.support.command_runs import Said, run

FAMILIES = ["qwen3_5", "qwen3_5_moe", "qwen3_next"]


def shape(family: str) -> dict[str, bool]:
    return {"experts": family != "qwen3_5"}


def published(folder: Path, family: str = "qwen3_5", **changes: Any) -> Path:
    """A checkpoint as Hugging Face publishes it, with its head and its tokenizer."""
    head = tiny.prefixed(tiny.raw(tiny.make_head(**shape(family))))
    trunk = tiny.trunk_weights(tiny.make_model(family), stored_raw=True)
    if family != "qwen3_5":
        head, trunk = tiny.single(head), tiny.single(trunk)
    if family == "qwen3_5_moe":
        head = tiny.prefixed(tiny.fused(tiny.raw(tiny.make_head(experts=True))))
        trunk = tiny.fused(tiny.trunk_weights(tiny.make_model(family), stored_raw=True))
    files = {"model-00001.safetensors": trunk, "model-00002.safetensors": head}
    tiny.write(folder, files, config=tiny.config(family, **changes), listed=list(files))
    tokenizers.fast_tokenizer().save_pretrained(folder)
    return folder


def converted(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> Path:
    target = folder.parent / "out"
    said = run(capsys, "convert", str(folder), str(target), *options)
    assert (said.status, said.err) == (0, "")
    assert said.out == f"{target}: converted, its head in mtp.safetensors\n"
    return target


def refused(capsys: pytest.CaptureFixture[str], folder: Path, target: Path, *options: str) -> Said:
    before = sorted(folder.parent.iterdir())
    said = run(capsys, "convert", str(folder), str(target), *options)
    assert (said.status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert sorted(folder.parent.iterdir()) == before
    return said


def logits(head: object) -> mx.array:
    assert isinstance(head, QwenMTPHead)
    return head.step(*tiny.rows(6), head.make_cache()).logits


def parameters(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def same_files(one: Path, other: Path, but: set[str]) -> bool:
    names = {path.name for path in one.iterdir()} - but
    return names == {path.name for path in other.iterdir()} - but and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantise", [False, True])
def test_the_trunk_is_what_mlx_lm_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, quantise: bool
) -> None:
    folder = published(tmp_path / "source", family)
    options = ("-q", "--q-bits", "4", "--q-group-size", "32") if quantise else ()
    target = converted(capsys, folder, *options)
    stock = tmp_path / "stock"
    convert(str(folder), str(stock), quantize=quantise, q_bits=4, q_group_size=32)
    # Routers are packed more finely, and the config says so of the head's too.
    told = {"config.json"} if quantise and family != "qwen3_5" else set()
    assert same_files(target, stock, {"mtp.safetensors", *told})
    theirs, ours = (json.loads((p / "config.json").read_text()) for p in (stock, target))
    extra = ours.get("quantization", {}).keys() - theirs.get("quantization", {}).keys()
    names = {"mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"} if told else set()
    assert extra == names
    # Stock mlx-lm loads the one folder as it loads the other.
    loaded = [mlx_lm.load(str(path))[0] for path in (target, stock)]
    mine, other = parameters(loaded[0]), parameters(loaded[1])
    assert mine.keys() == other.keys()
    assert all(bool(mx.array_equal(mine[name], array)) for name, array in other.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_found_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    target = converted(capsys, published(tmp_path / "source", family))
    expected = tiny.make_head(**shape(family))
    found = find_head(target)
    assert {tensor.path.name for tensor in found.tensors.values()} == {"mtp.safetensors"}
    assert found.trunk_is_raw is False
    weights = read_head(found).weights
    assert weights.keys() == expected.keys()
    assert all(bool(mx.array_equal(weights[name], array)) for name, array in expected.items())
    model, _ = sp.load(target)
    reference = build_head(
        tiny.as_stock(tiny.make_model(family)), HeadTensors(expected, {}, (), (), ())
    )
    assert bool(mx.array_equal(logits(model.head), logits(reference)))


@pytest.mark.parametrize(
    ("options", "packing"),
    [
        (["--q-bits", "4", "--q-group-size", "32"], Quantization(4, 32, "affine")),
        ([], Quantization(4, 64, "affine")),
        (["--q-mode", "mxfp4"], Quantization(4, 32, "mxfp4")),
    ],
)
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_head_is_quantised_as_the_model_says(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    family: str,
    options: list[str],
    packing: Quantization,
) -> None:
    target = converted(capsys, published(tmp_path / "source", family), "-q", *options)
    stock: Any = tiny.make_model(family)
    reference = build_head(
        tiny.as_stock(stock), HeadTensors(tiny.make_head(**shape(family)), {}, (), (), ())
    )
    assert isinstance(reference, QwenMTPHead)

    def chosen(name: str, module: nn.Module) -> dict[str, object] | bool:
        if not callable(getattr(module, "to_quantized", None)):
            return False
        if module.weight.shape[-1] % packing.group_size:
            return False
        return True if stock.quant_predicate is None else stock.quant_predicate(name, module)

    module = cast(nn.Module, reference._module)
    nn.quantize(module, packing.group_size, packing.bits, mode=packing.mode, class_predicate=chosen)
    found = build_head(tiny.as_stock(tiny.make_model(family)), read_head(find_head(target)))
    assert bool(mx.array_equal(logits(found), logits(reference)))


def test_the_numbers_are_of_the_type_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = converted(capsys, published(tmp_path / "source"), "--dtype", "bfloat16")
    weights = read_head(find_head(target)).weights
    assert {array.dtype for array in weights.values()} == {mx.bfloat16}


def test_unpacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = converted(capsys, published(tmp_path / "source"), "-q", "--q-group-size", "32")
    packed = packed.rename(tmp_path / "packed")
    plain = converted(capsys, packed, "--dequantize")
    convert(str(packed), str(tmp_path / "stock"), dequantize=True)
    assert same_files(plain, tmp_path / "stock", {"mtp.safetensors"})
    before, after = read_head(find_head(packed)), read_head(find_head(plain))
    assert not after.quantization and before.quantization
    packed_fc, scales, biases = (before.weights[f"fc.{n}"] for n in ("weight", "scales", "biases"))
    expected = mx.dequantize(packed_fc, scales, biases, 32, 4)
    assert bool(mx.array_equal(after.weights["fc.weight"], expected))


def test_a_config_that_names_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the bundled model's does, for its tokenizer."""
    target = tmp_path / "out"
    assert run(capsys, "convert", "hybrid", str(target), "--dequantize").status == 0
    model, tokenizer = sp.load(target)
    expected = sp.load()[1].encode("def f(x):")
    assert model.head is not None and tokenizer.encode("def f(x):") == expected
    assert mlx_lm.load(str(target))[1].encode("def f(x):") == expected


def test_a_folder_that_stock_mlx_lm_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, head = tiny.make_model("qwen3_next"), tiny.make_head(experts=True)
    weights = {**tiny.trunk_weights(model), **tiny.prefixed(head)}
    folder = tiny.write(
        tmp_path / "kept", {"model.safetensors": weights}, config=tiny.config("qwen3_next")
    )
    tokenizers.fast_tokenizer().save_pretrained(folder)
    with pytest.raises(ValueError, match="not in model"):
        mlx_lm.load(str(folder))
    target = converted(capsys, folder)
    found, expected = parameters(mlx_lm.load(str(target))[0]), parameters(model)
    assert all(bool(mx.array_equal(found[name], array)) for name, array in expected.items())


def test_a_head_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = published(tmp_path / "source")
    (folder / "model-00002.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    drafter = tiny.write(tmp_path / "drafter", {"model.safetensors": tiny.make_head()})
    said = refused(capsys, folder, tmp_path / "out")
    assert "no multi-token-prediction head" in said.err
    target = converted(capsys, folder, "--head", str(drafter))
    assert read_head(find_head(target)).weights.keys() == tiny.make_head().keys()


KILLED = """
import os, signal, sys
from speculate.checkpoints import convert
from speculate.cli.main import main
whole = getattr(convert, sys.argv[1])
def stop(*args, **options):
    whole(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(convert, sys.argv[1], stop)
main(["convert", *sys.argv[2:]])
"""


@pytest.mark.parametrize("step", ["save", "save_model", "create_model_card"])
def test_a_killed_run_leaves_nothing_that_loads(tmp_path: Path, step: str) -> None:
    target = tmp_path / "out"
    places = [str(published(tmp_path / "source")), str(target)]
    ran = subprocess.run([sys.executable, "-c", KILLED, step, *places], check=False)
    assert ran.returncode == -signal.SIGKILL
    assert not target.exists()
    (hidden,) = tmp_path.glob(".out.*.partial")
    for folder in (hidden, hidden / "new"):
        with pytest.raises(CheckpointError):
            sp.load(folder)


def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target = published(tmp_path / "source"), tmp_path / "out"
    wide = tiny.write(tmp_path / "wide", {"mtp.safetensors": tiny.make_head(inner=128)}, config={})
    said = refused(capsys, folder, target, "--head", str(wide))
    assert "mlp.gate_proj.weight" in said.err and "(96, 64)" in said.err
    assert "not both" in refused(capsys, folder, target, "-q", "-d").err
    assert "contains the source" in refused(capsys, folder, folder, "--force").err
    assert "--force" in refused(capsys, folder, wide).err
    assert "no such folder" in refused(capsys, tmp_path / "nowhere", target).err

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("speculate.checkpoints.convert.save", fail)
    assert "No space left" in refused(capsys, folder, target).err
    # What was there before a conversion that fails is there after it.
    target.mkdir()
    (target / "config.json").write_text("{}")
    assert "No space left" in refused(capsys, folder, target, "--force").err
    assert (target / "config.json").read_text() == "{}"
