"""`speculate inspect`: what it says of checkpoints, and that it loads none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import mlx.core as mx
import pytest

from speculate import SpeculativeModel
from speculate.backends.arrays import RewindableArraysCache
from speculate.cli import _inspect_report
from speculate.cli.main import COMMANDS
from speculate.loading import demo_folder
from speculate.models import registry
from speculate.protocols import Forward
from tests.support import checkpoint_files as tiny
from tests.support import tiny as families
from tests.support import tokenizers
from tests.support.command_runs import run
from tests.support.verify_subjects import Around

Layout = Callable[[Mapping[str, mx.array]], tiny.Weights]


def described(capsys: pytest.CaptureFixture[str], path: object, *options: str) -> dict[str, Any]:
    said = run(capsys, "inspect", str(path), "--json", *options)
    assert (said.status, said.err) == (0, "")
    found: dict[str, Any] = json.loads(said.out)
    return found


def table(capsys: pytest.CaptureFixture[str], path: object) -> str:
    said = run(capsys, "inspect", str(path))
    assert (said.status, said.err) == (0, "")
    return said.out


def checkpoint(folder: Path, layout: Layout = dict, *, raw: bool = False, **shape: Any) -> Path:
    trunk = tiny.trunk_weights(tiny.make_model(), stored_raw=raw)
    head = tiny.prefixed(layout(tiny.make_head(**shape)))
    return tiny.write(folder, {"model.safetensors": trunk, "mtp.safetensors": head})


def test_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, "hybrid")
    assert found["model_type"] == "qwen3_5"
    made = found["architecture"]
    assert (made["adapter"], made["problem"]) == ("Qwen35Adapter", None)
    config = json.loads((demo_folder("hybrid") / "config.json").read_text())["text_config"]
    kinds = {group["cache"]: group for group in made["layers"]}
    assert kinds.keys() == {"ArraysCache", "KVCache"}
    assert all(group["can_rewind"] for group in kinds.values())
    layers = sorted(index for group in kinds.values() for index in group["indices"])
    assert layers == list(range(config["num_hidden_layers"]))
    assert "recorded" in kinds["ArraysCache"]["rewind"]
    assert found["quantization"]["bits"] == 8
    assert (found["head"]["files"], found["no_head"]) == (["model.safetensors"], None)
    assert found["vocabulary_size"] == config["vocab_size"]
    # Models that draft for each other say so.
    draft = described(capsys, "draft")
    assert draft["tokenizer"] == found["tokenizer"]
    assert draft["head"] is None and "no multi-token-prediction head" in draft["no_head"]


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table(capsys, "windowed")
    for part in ("gpt_oss (DenseAdapter)", "RotatingKVCache(32)", "KVCache: exact", "head"):
        assert part in plain
    assert "\x1b" not in plain
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[1m" in run(capsys, "inspect", "windowed").out


RAW, GAINS = "raw (gains minus one)", "gains"


@pytest.mark.parametrize("trunk_raw", [True, False])
@pytest.mark.parametrize("layout", [tiny.raw, dict])
def test_the_convention_of_the_norms_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trunk_raw: bool, layout: Layout
) -> None:
    folder = checkpoint(tmp_path, layout, raw=trunk_raw)
    stored = RAW if layout is tiny.raw else GAINS
    lines = [line for line in table(capsys, folder).splitlines() if "; mean " in line]
    assert len(lines) == 4
    assert all(f": {stored}; mean " in line for line in lines)
    for line, norm in zip(lines, described(capsys, folder)["head"]["norms"], strict=True):
        assert norm["convention"] == stored.split()[0]
        assert norm["reason"] and line.endswith(f": {norm['reason']}")


def test_norms_that_are_stored_in_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def mixed(head: Mapping[str, mx.array]) -> tiny.Weights:
        return {**tiny.raw(head), "norm.weight": head["norm.weight"]}

    found = described(capsys, checkpoint(tmp_path, mixed))["head"]["norms"]
    assert [norm["convention"] for norm in found] == ["raw", "raw", "raw", "gains"]
    assert found[-1]["reason"] == "smaller than a raw final norm is"


@pytest.mark.parametrize(
    ("layout", "name"),
    [(tiny.fused, "fused"), (tiny.single, "one by one"), (dict, "stacked")],
)
def test_experts_and_their_packing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: Layout, name: str
) -> None:
    head = tiny.make_head(experts=True)
    choice = {"layers.0.mlp.gate": (8, 64, "affine"), "fc": (4, 32, "mxfp4")}
    stored = tiny.prefixed(layout(tiny.quantised(head, choice)), "model.mtp.")
    folder = tiny.write(tmp_path, {"x.safetensors": stored}, config=tiny.config("qwen3_5_moe"))
    found = described(capsys, folder)
    assert found["head"]["experts"] == [name]
    packings = [(p["bits"], p["mode"], count) for p, count in found["head"]["packings"]]
    assert sorted(packings) == [(4, "mxfp4", 1), (8, "affine", 1)]
    assert found["prefix"] == "model.mtp."
    text = table(capsys, folder)
    assert "model.mtp.* in x.safetensors" in text and "mxfp4 4 bits, group 32" in text


def test_blocks_of_8_bit_floats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = tiny.make_head()
    packed = {"fc.weight": mx.to_fp8(head["fc.weight"]), "fc.weight_scale_inv": mx.ones((1, 1))}
    found = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed({**head, **packed})})
    assert described(capsys, found)["head"]["blocks"] == 1


def test_a_head_on_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "qwen3_5_mtp",
        **{k: v for k, v in tiny.config().items() if k[0] == "t"},
    }
    folder = tiny.write(tmp_path, {"model.safetensors": tiny.make_head(layers=2)}, config=config)
    assert "qwen3_5_mtp (a head on its own)" in table(capsys, folder)
    found = described(capsys, folder)
    assert (found["architecture"], found["prefix"]) == (None, "")
    assert found["vocabulary_size"] == tiny.VOCABULARY
    assert len(found["head"]["experts"]) == 2
    assert described(capsys, folder / "model.safetensors")["head"] == found["head"]


def test_a_head_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny.write(tmp_path / "trunk", {"model.safetensors": {"a": mx.zeros((1,))}})
    head = tiny.write(tmp_path / "head", {"x.safetensors": tiny.make_head()})
    assert described(capsys, folder)["head"] is None
    assert described(capsys, folder, "--head", str(head))["head"]["files"] == ["x.safetensors"]


@pytest.mark.parametrize(
    ("family", "caches"),
    [
        ("short_conv", {"ArraysCache": "by whole blocks", "KVCache": "exact"}),
        ("next_moe", {"ArraysCache": "recorded", "KVCache": "exact"}),
        ("windowed", {"RotatingKVCache(8)": "rows beyond", "KVCache": "exact"}),
    ],
)
def test_the_caches_of_other_families(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, caches: dict[str, str]
) -> None:
    model: Any = getattr(families, family)()
    config = {**vars(model.args)}
    folder = tiny.write(tmp_path, {"model.safetensors": {"a": mx.zeros((1,))}}, config=config)
    found = {g["cache"]: g["rewind"] for g in described(capsys, folder)["architecture"]["layers"]}
    assert found.keys() == caches.keys()
    assert all(part in found[cache] for cache, part in caches.items())


@pytest.mark.parametrize("family", ["hybrid", "next_moe"])
def test_an_adapter_of_another_package_is_reported_by_what_its_layers_record(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
) -> None:
    model: Any = getattr(families, family)()
    folder = tiny.write(
        tmp_path, {"model.safetensors": {"a": mx.zeros((1,))}}, config={**vars(model.args)}
    )
    found = registry.factory_for

    def rewinds(adapter: Callable[[SpeculativeModel], SpeculativeModel]) -> dict[str, str]:
        monkeypatch.setattr(
            _inspect_report,
            "factory_for",
            lambda kind: lambda stock, **options: adapter(found(kind)(stock, **options)),
        )
        made = described(capsys, folder)["architecture"]
        assert made["adapter"] in ("Around", "Unrecorded")
        return {group["cache"]: group["rewind"] for group in made["layers"]}

    for adapter, state in ((Around, "recorded"), (Unrecorded, "by whole blocks")):
        reported = rewinds(adapter)
        assert state in reported["ArraysCache"] and "exact" in reported["KVCache"]


@final
class Unrecorded(Around):
    """Runs its layers so that they record nothing, as those of an unknown family."""

    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RewindableArraysCache, "recording", lambda _: False)
            return super().forward_stock(tokens, cache)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8,
          "state_size": 2, "num_hidden_layers": 2, "conv_kernel": 4, "use_bias": False,
          "use_conv_bias": True, "time_step_rank": 1}, "no adapter drives 'mamba'"),
        ({"model_type": "nobody_knows"}, "mlx-lm cannot build it"),
        ({"model_type": "llama"}, "mlx-lm cannot build it"),
        ({"model_type": "llama", "model_file": "evil.py"}, "which is not run"),
    ],
)  # fmt: skip
def test_models_that_nothing_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], reason: str
) -> None:
    folder = tiny.write(tmp_path, {"model.safetensors": {"a": mx.zeros((1,))}}, config=config)
    (folder / "evil.py").write_text("raise SystemExit('run')")
    assert reason in table(capsys, folder)
    assert described(capsys, folder)["architecture"]["adapter"] is None


def test_tokenizers_of_either_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path)
    found = []
    for tokenizer in (
        {"model": {"vocab": [["a", 0.5], ["b", 0.25]]}},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "b"}]},
    ):
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        found.append(described(capsys, folder)["tokenizer"])
    assert found[0] == found[1] and found[0]["tokens"] == 2
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 0, "a": 1}}}))
    assert described(capsys, folder)["tokenizer"]["fingerprint"] != found[0]["fingerprint"]
    tokenizers.fast_tokenizer().save_pretrained(folder)
    assert described(capsys, folder)["tokenizer"]["tokens"] == families.VOCAB


@pytest.mark.parametrize("name", ["inspect", "extract-head", "convert"])
def test_the_example_of_a_command_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    example = COMMANDS[name].example
    assert example.startswith(f"speculate {name} ")
    assert run(capsys, *example.split()[1:]).status == 0
    assert example in run(capsys, name, "--help").out
