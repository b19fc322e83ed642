"""`speculate extract-head`: from every layout the same drafter, whole or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculate.checkpoints import HeadTensors, Quantization, find_head, read_head
from speculate.models.mtp import QwenMTPHead, build_head
from tests.support import checkpoint_files as tiny
from tests.support.command_runs import run

Layout = Callable[[tiny.Weights], tiny.Weights]


def raw_and_fused(head: tiny.Weights) -> tiny.Weights:
    return tiny.fused(tiny.raw(head))


def raw_and_single(head: tiny.Weights) -> tiny.Weights:
    return tiny.single(tiny.raw(head))


# Family of the trunk, shape of the head, layout, prefix.
CASES: dict[str, tuple[str, dict[str, Any], Layout, str]] = {
    "raw": ("qwen3_5", {}, tiny.raw, "mtp."),
    "converted": ("qwen3_5", {}, dict, "language_model.mtp."),
    "a drafter": ("qwen3_5", {}, dict, ""),
    "two layers": ("qwen3_5", {"layers": 2}, dict, "model.mtp."),
    "fused": ("qwen3_5_moe", {"experts": True}, raw_and_fused, "mtp."),
    "one by one": ("qwen3_next", {"experts": True}, raw_and_single, "mtp."),
    "stacked": ("qwen3_next", {"experts": True}, dict, "mtp."),
    "dense under experts": ("qwen3_5_moe", {"inner": 128}, dict, "mtp."),
}


def source(folder: Path, case: str) -> tuple[Path, tiny.Weights]:
    """A checkpoint's folder, and the head that everybody should read from it."""
    family, shape, layout, prefix = CASES[case]
    head = tiny.make_head(**shape)
    files = {"mtp.safetensors": tiny.prefixed(layout(head), prefix)}
    return tiny.write(folder, files, config=tiny.config(family)), head


def logits(head: object) -> mx.array:
    assert isinstance(head, QwenMTPHead)
    return head.step(*tiny.rows(6), head.make_cache()).logits


def loaded(family: str, folder: Path) -> QwenMTPHead:
    head = build_head(tiny.as_stock(tiny.make_model(family)), read_head(find_head(folder)))
    assert isinstance(head, QwenMTPHead)
    return head


def reference(family: str, head: tiny.Weights) -> QwenMTPHead:
    plain = HeadTensors(head, {}, (), (), ())
    built = build_head(tiny.as_stock(tiny.make_model(family)), plain)
    assert isinstance(built, QwenMTPHead)
    return built


def extract(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> Path:
    target = folder.parent / f"{folder.name}-mtp"
    said = run(capsys, "extract-head", str(folder), "--output", str(target), *more)
    assert (said.status, said.err) == (0, "")
    assert str(target) in said.out
    return target


@pytest.mark.parametrize("case", CASES)
def test_every_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    family = CASES[case][0]
    folder, head = source(tmp_path / "source", case)
    target = extract(capsys, folder)
    found = find_head(target)
    assert (found.prefix, {file.name for file in found.files}) == ("", {"model.safetensors"})
    tensors = read_head(found)
    assert {decision.convention for decision in tensors.norms} == {"gains"}
    assert bool(mx.array_equal(logits(loaded(family, target)), logits(reference(family, head))))
    # And once more, from what came out.
    again = read_head(find_head(extract(capsys, target))).weights
    assert again.keys() == tensors.weights.keys()
    assert all(bool(mx.array_equal(again[name], array)) for name, array in tensors.weights.items())


@pytest.mark.parametrize("case", CASES)
def test_the_config_says_what_other_software_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    family, shape, _, _ = CASES[case]
    target = extract(capsys, source(tmp_path / "source", case)[0])
    config = json.loads((target / "config.json").read_text())
    layers, text = shape.get("layers", 1), config["text_config"]
    assert (config["model_type"], config["block_size"]) == ("qwen3_5_mtp", layers + 2)
    assert config["tie_word_embeddings"] is text["tie_word_embeddings"] is False
    assert text["hidden_size"] == tiny.WIDTH
    assert (text["mtp_num_hidden_layers"], text["mtp_use_dedicated_embeddings"]) == (layers, False)
    assert (text["num_experts"] > 0) == shape.get("experts", False)
    assert text["intermediate_size"] == shape.get("inner", 96)
    theta = tiny.NEXT["rope_theta"] if family == "qwen3_next" else 100_000
    assert text["rope_parameters"]["rope_theta"] == theta
    assert {"type", "partial_rotary_factor", "mrope_section"} <= text["rope_parameters"].keys()
    rotated = tiny.NEXT["partial_rotary_factor"] * tiny.HEAD_DIM
    assert sum(text["rope_parameters"]["mrope_section"]) * 2 >= rotated
    assert "quantization" not in config


def test_tied_embeddings_are_said_where_the_model_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tied in (True, False):
        config = {**tiny.config(tie_word_embeddings=tied), "tie_word_embeddings": not tied}
        files = {"mtp.safetensors": tiny.prefixed(tiny.make_head())}
        folder = tiny.write(tmp_path / str(tied), files, config=config)
        found = json.loads((extract(capsys, folder) / "config.json").read_text())
        assert found["tie_word_embeddings"] is found["text_config"]["tie_word_embeddings"] is tied


FINE = Quantization(8, 64, "affine")


def quantised(family: str, head: tiny.Weights, packing: Quantization) -> mx.array:
    """Logits of the reference, its modules quantised by mlx: the routers more finely."""
    built = reference(family, head)

    def chosen(name: str, module: nn.Module) -> dict[str, object] | bool:
        if "norm" in name or not callable(getattr(module, "to_quantized", None)):
            return False
        how = FINE if name.endswith(("mlp.gate", "shared_expert_gate")) else packing
        return {"bits": how.bits, "group_size": how.group_size, "mode": how.mode}

    nn.quantize(cast(nn.Module, built._module), class_predicate=chosen)
    return logits(built)


@pytest.mark.parametrize("case", ["raw", "fused", "one by one"])
def test_quantising_while_it_is_extracted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    family = CASES[case][0]
    folder, head = source(tmp_path / "source", case)
    target = extract(capsys, folder, "--quantize", "4,32")
    expected = quantised(family, head, Quantization(4, 32, "affine"))
    assert bool(mx.array_equal(logits(loaded(family, target)), expected))
    config = json.loads((target / "config.json").read_text())["quantization"]
    assert {k: v for k, v in config.items() if not isinstance(v, dict)} == {
        "bits": 4, "group_size": 32, "mode": "affine"
    }  # fmt: skip
    routers = {"layers.0.mlp.gate", "layers.0.mlp.shared_expert_gate"}
    finer = {k for k, v in config.items() if isinstance(v, dict)}
    assert finer == (set() if case == "raw" else routers)


MIXED = {"fc": (6, 64, "affine"), "layers.0.self_attn.v_proj": (8, 32, "mxfp8")}


def test_a_quantised_head_is_extracted_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tiny.quantised(tiny.make_head(), MIXED)
    folder = tiny.write(tmp_path / "source", {"mtp.safetensors": tiny.prefixed(stored)})
    target = extract(capsys, folder)
    found = read_head(find_head(target))
    assert all(bool(mx.array_equal(found.weights[name], array)) for name, array in stored.items())
    common = {"bits": 6, "group_size": 64, "mode": "affine"}
    other = {"bits": 8, "group_size": 32, "mode": "mxfp8"}
    config = json.loads((target / "config.json").read_text())["quantization"]
    assert config == {**common, "layers.0.self_attn.v_proj": other}


def test_a_quantised_head_can_be_quantised_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tiny.quantised(tiny.make_head(), MIXED)
    folder = tiny.write(tmp_path / "source", {"mtp.safetensors": tiny.prefixed(stored)})
    found = read_head(find_head(extract(capsys, folder, "--quantize", "6")))
    assert set(found.quantization.values()) == {Quantization(6, 64, "affine")}
    # What has the packing already is not touched.
    assert bool(mx.array_equal(found.weights["fc.weight"], stored["fc.weight"]))
    name = "layers.0.self_attn.v_proj"
    parts = (stored[f"{name}.weight"], stored[f"{name}.scales"], None, 32, 8, "mxfp8")
    plain = mx.dequantize(*parts, dtype=mx.float32)
    assert bool(mx.array_equal(found.weights[f"{name}.weight"], mx.quantize(plain, 64, 6)[0]))


def test_a_tokenizer_comes_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = source(tmp_path / "source", "raw")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("")
    names = {path.name for path in extract(capsys, folder).iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json"}


def test_nothing_is_overwritten_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = source(tmp_path / "source", "raw")
    target = extract(capsys, folder)
    (target / "mine").write_text("")
    before = (target / "model.safetensors").stat().st_mtime_ns
    args = ("extract-head", str(folder), "--output", str(target))
    said = run(capsys, *args)
    assert said.status == 2 and "--force" in said.err and said.err.count("\n") == 1
    assert (target / "model.safetensors").stat().st_mtime_ns == before
    assert run(capsys, *args, "--force").status == 0
    assert not (target / "mine").exists()
    # Only a model's folder gives way, and never the source.
    (other := tmp_path / "other").mkdir()
    (other / "thesis.txt").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    places = {other: "no model's folder", folder: "contains the source"}
    places |= dict.fromkeys([tmp_path / "loop" / "x", tmp_path / ("a" * 300)], "cannot be made")
    for place, reason in places.items():
        again = run(capsys, "extract-head", str(folder), "--output", str(place), "--force")
        assert again.status == 2 and reason in again.err
    assert (other / "thesis.txt").exists() and (folder / "mtp.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"source", "source-mtp", "other", "loop"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise error

    folder, _ = source(tmp_path / "source", "raw")
    monkeypatch.setattr("speculate.checkpoints.export.save", fail)
    said = run(capsys, "extract-head", str(folder), "--output", str(tmp_path / "new"))
    assert said.status == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


KILLED = """
import os, signal, sys
from speculate.checkpoints import export
from speculate.cli.main import main
whole = export.save
def save(path, weights):
    whole(path, weights)
    os.truncate(path, os.path.getsize(path) - 1)
    os.kill(os.getpid(), signal.SIGKILL)
export.save = save
main(["extract-head", *sys.argv[1:], "--force"])
"""


def test_a_killed_run_leaves_nothing_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = source(tmp_path / "source", "raw")
    target = extract(capsys, folder)
    before = (target / "model.safetensors").read_bytes()
    command = [sys.executable, "-c", KILLED, str(folder), "--output", str(target)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    # What was there is there still; what was being made is hidden, and no head.
    assert (target / "model.safetensors").read_bytes() == before
    (hidden,) = tmp_path.glob(".source-mtp.*.partial")
    for path in (hidden, hidden / "new"):
        assert run(capsys, "inspect", str(path / "model.safetensors")).status == 2
    assert not (hidden / "new" / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--quantize", "four"], "must be like 4,64"),
        (["--quantize", "7,64"], "bits must be in"),
        (["--quantize", "4,48"], "the group in (32, 64, 128)"),
    ],
)
def test_what_cannot_be_asked_for(
    capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    said = run(capsys, "extract-head", "hybrid", "--output", "x", *options)
    assert (said.status, said.out) == (2, "")
    assert reason in said.err


def test_what_cannot_be_extracted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"mtp.safetensors": tiny.prefixed(tiny.make_head())}
    alone = tiny.write(tmp_path / "alone", files, config={"model_type": "qwen3_5"})
    empty = tiny.write(tmp_path / "empty", {"model.safetensors": {"a": mx.zeros((1,))}})
    for folder, reason in ((alone, "Put its trunk's there"), (empty, "no multi-token-prediction")):
        said = run(capsys, "extract-head", str(folder), "--output", str(tmp_path / "x"))
        assert said.status == 2 and reason in said.err and str(folder) in said.err
    assert not (tmp_path / "x").exists()
