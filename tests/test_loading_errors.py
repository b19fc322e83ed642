"""What is said of folders that cannot be loaded: what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import gemma

import speculate as sp
from speculate.errors import CheckpointError, UnsupportedModelError
from tests.support import tiny, tokenizers


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE)


def test_no_such_folder(tmp_path: Path) -> None:
    for name in ("nowhere", "./no/where", tmp_path / "no" / "where", "a" * 300, "~/no such"):
        with pytest.raises(CheckpointError, match=r"no such folder|cannot be read"):
            sp.load(name)


def test_a_file(dense: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        sp.load(dense / "config.json")


def test_a_hub_that_has_no_such_thing(monkeypatch: pytest.MonkeyPatch, dense: Path) -> None:
    asked: list[dict[str, Any]] = []

    def download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        if repository != "owner/name":
            raise OSError("404 Client Error.\n\nRepository Not Found")
        return str(dense)

    monkeypatch.setattr("mlx_lm.utils.snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"no such folder.*404 Client Error. Repository"):
        sp.load("no/thing")
    assert sp.load("owner/name", revision="v1")[0].vocab_size == tiny.VOCAB
    assert asked[1]["revision"] == "v1"
    # Heads in a file of their own come along.
    assert "*mtp*.safetensors" in asked[1]["allow_patterns"]


def broken(folder: Path, what: str) -> None:
    """Break a good folder."""
    config = folder / "config.json"
    known = json.loads(config.read_text())
    match what:
        case "no config":
            config.unlink()
        case "config is no json":
            config.write_text("{")
        case "config is a list":
            config.write_text("[]")
        case "no model type":
            config.write_text(json.dumps({k: v for k, v in known.items() if k != "model_type"}))
        case "unknown type":
            config.write_text(json.dumps({**known, "model_type": "nobody_knows"}))
        case "a module that is no model":
            config.write_text(json.dumps({**known, "model_type": "cache"}))
        case "a head alone":
            config.write_text(json.dumps({**known, "model_type": "qwen3_5_mtp"}))
        case "a setting is missing":
            config.write_text(json.dumps({"model_type": "llama"}))
        case "no weights":
            (folder / "model.safetensors").unlink()
        case "weights of another shape":
            config.write_text(json.dumps({**known, "hidden_size": 64}))
        case "weights are missing":
            config.write_text(json.dumps({**known, "num_hidden_layers": 4}))
        case "weights are cut short":
            file = folder / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-100])
        case "weights are none":
            (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
            (folder / "tokenizer_config.json").unlink()
        case "tokenizer is no json":
            (folder / "tokenizer.json").write_text("{")
        case "more layers than can be":
            config.write_text(json.dumps({**known, "num_hidden_layers": 10**9}))
        case "code of its own":
            config.write_text(json.dumps({**known, "model_file": "model.py"}))


REASONS = {
    "no config": "has no config.json",
    "config is no json": "not valid JSON",
    "config is a list": "not a JSON object",
    "no model type": "has no model_type",
    "unknown type": "no model type 'nobody_knows'. Supported: gpt_oss, ",
    "a module that is no model": "no model type 'cache'",
    "a head alone": "pass this folder as head=",
    "a setting is missing": "mlx-lm cannot load the model: TypeError",
    "no weights": r"no weights.*mlx_lm.convert",
    "weights of another shape": "mlx-lm cannot load the model: ValueError: Expected shape",
    "weights are missing": "mlx-lm cannot load the model: ValueError: Missing",
    "weights are cut short": r"model\.safetensors: .*cut short",
    "weights are none": r"model\.safetensors: is not a safetensors file",
    "no tokenizer": "its tokenizer cannot be loaded",
    "tokenizer is no json": "its tokenizer cannot be loaded: JSONDecodeError",
    "more layers than can be": r"config\.json: num_hidden_layers is 1000000000, which cannot be",
    "code of its own": "trust_remote_code",
}


@pytest.mark.parametrize("what", REASONS)
def test_a_broken_folder(dense: Path, what: str) -> None:
    broken(dense, what)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=REASONS[what]) as caught:
        sp.load(dense)
    assert str(dense) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_would_keep_others_waiting_or_lie_to_them(dense: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        whole = (dense / name).read_bytes()
        (dense / name).unlink()
        os.mkfifo(dense / name)
        with pytest.raises(CheckpointError, match=rf"{name}: is not a regular file"):
            sp.load(dense)
        (dense / name).unlink()
        (dense / name).write_bytes(whole)
    file = dense / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"1")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is cut short or damaged"):
        sp.load(dense)


def test_a_type_that_mlx_lm_has_and_no_adapter_drives(tmp_path: Path) -> None:
    config: dict[str, object] = {**tokenizers.DENSE, "model_type": "gemma", "head_dim": 8}
    model = gemma.Model(gemma.ModelArgs.from_dict(config))
    tokenizers.write_folder(tmp_path, model, config)
    with pytest.raises(UnsupportedModelError, match="no adapter drives 'gemma'") as caught:
        sp.load(tmp_path)
    line = 'gemma = "your_package:YourAdapter"'
    said = str(caught.value)
    assert '[project.entry-points."speculate.models"]' in said
    assert 0 < said.index("write a class") < said.index(line)
    assert "DenseAdapter" not in said, "naming it is no general advice: see the check of adapters"
