"""`speculate inspect` on files from strangers: quick, and a line for what is wrong."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.support import checkpoint_files as tiny
from tests.support.command_runs import Said, run


@pytest.fixture(autouse=True, scope="module")
def imported() -> None:
    """Importing mlx-lm takes its time, and is not what is measured."""
    import speculate.cli._inspect_report  # noqa: F401


@pytest.fixture(autouse=True)
def quick_and_small() -> Iterator[None]:
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 * 2**10


def inspected(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> Said:
    said = run(capsys, "inspect", str(path), *options)
    assert "Traceback" not in said.err and said.err.count("\n") == (said.status == 2)
    return said


def folder(path: Path, **changes: Any) -> Path:
    files = {"mtp.safetensors": tiny.prefixed(tiny.make_head())}
    return tiny.write(path, files, config={**tiny.config("qwen3_next"), **changes})


HUGE = 10**12


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": HUGE},
        {"num_hidden_layers": 1025},
        {"model_type": "llama", "num_hidden_layers": 2**63},
        {"text_config": {"num_hidden_layers": HUGE}, "model_type": "qwen3_5"},
    ],
)
def test_more_layers_than_there_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    said = inspected(capsys, folder(tmp_path, **changes))
    assert said.status == 2
    assert "config.json: num_hidden_layers is" in said.err


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": HUGE},
        {"vocab_size": HUGE},
        {"num_experts": HUGE},
        {
            "model_type": "dbrx",
            "n_layers": 1,
            "d_model": 8,
            "vocab_size": 8,
            "attn_config": {"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 1e4},
            "n_heads": 1,
            "ffn_config": {"moe_num_experts": HUGE, "moe_top_k": 1, "ffn_hidden_size": 8},
        },
        {"num_hidden_layers": -5},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": None},
        {"model_type": ["qwen3_next"]},
        {"model_type": "../../evil"},
        {"text_config": [1]},
        {"architectures": {"a": 1}},
        {"quantization": {"group_size": -1, "bits": [3]}},
        {"linear_num_key_heads": 0},
        {"mlp_only_layers": 3},
        {"rms_norm_eps": {"__float__": "NaN"}},
    ],
)
def test_a_config_that_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    path = folder(tmp_path, **changes)
    assert inspected(capsys, path).status == 0
    json.loads(inspected(capsys, path, "--json").out)


def test_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path)
    for name, content in (
        ("tokenizer.json", "[" * 100_000),
        ("config.json", '{"a": 1, "a"'),
        ("mtp.safetensors", "12345678"),
    ):
        (path / name).write_text(content)
        said = inspected(capsys, path)
        assert said.status == 2 and name in said.err


@pytest.mark.parametrize(
    "tokenizer",
    [[1], {}, {"model": 3}, {"model": {"vocab": [3, None]}, "added_tokens": [1, {"id": [2]}]}],
)
def test_a_tokenizer_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer: object
) -> None:
    path = folder(tmp_path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert inspected(capsys, path).status == (2 if tokenizer == [1] else 0)


def test_names_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path, model_type="\x1b]0;owned\x07[bold]\ud800")
    said = inspected(capsys, path)
    assert said.status == 0 and "\x1b" not in said.out and "?]0;owned?[bold]?" in said.out


def test_an_error_cannot_write_to_the_terminal_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    names = {"mtp.\x1b[2Jfc.weight": "\x1b]0;owned\x07.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    said = inspected(capsys, path)
    assert said.status == 2 and "\x1b" not in said.err and "mtp.?[2Jfc.weight" in said.err


def test_norms_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = {n: a * float("nan") if "norm" in n else a for n, a in tiny.make_head().items()}
    path = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(head)})
    found = json.loads(inspected(capsys, path, "--json").out)
    assert {norm["mean"] for norm in found["head"]["norms"]} == {None}


@pytest.mark.parametrize("lost", ["norm.weight", "layers.0.self_attn.q_proj.weight", "fc.weight"])
def test_part_of_a_head(tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str) -> None:
    packed = tiny.quantised(tiny.make_head(), {"layers.0.self_attn.o_proj": (4, 32, "affine")})
    stored = {name: array for name, array in packed.items() if name != lost}
    said = inspected(capsys, tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(stored)}))
    assert said.status == (0 if lost == "fc.weight" else 2)


def test_shapes_that_no_head_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(["pre_fc_norm_hidden.weight", "fc.weight", "norm.weight"]):
        for shape in ((), (3,), (1, 2, 3)):
            stored = {**tiny.make_head(), name: mx.zeros(shape)}
            place = tmp_path / f"{number}{len(shape)}"
            path = tiny.write(place, {"mtp.safetensors": tiny.prefixed(stored)})
            assert inspected(capsys, path).status in (0, 2)


def test_not_a_byte_of_the_trunk_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 2**35
    described = {"dtype": "F32", "shape": [2**16, size // 2**18], "data_offsets": [0, size]}
    text = json.dumps({"model.embed_tokens.weight": described}).encode()
    with (folder(tmp_path) / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    said = inspected(capsys, tmp_path)
    assert said.status == 0 and "Qwen3NextAdapter" in said.out
