"""Loading: what comes in, what is attached to it, and what is said of folders that are broken."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.utils import quantize_model

import speculate as sp
from speculate import SpeculativeModel
from speculate.errors import (
    CheckpointError,
    HeadMismatchError,
    HeadNotFoundError,
    OptionError,
    SpeculateWarning,
    UnsupportedModelError,
)
from speculate.loading import demo_prompt
from speculate.models.adapter import StockAdapter
from tests.support import checkpoint_files as on_disk
from tests.support import reference, tiny, tokenizers


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE)


def headed(folder: Path, family: str = "qwen3_5", **options: Any) -> Path:
    """A checkpoint with a head in a file of its own."""
    experts = family != "qwen3_5"
    head = {f"mtp.{name}": array for name, array in on_disk.make_head(experts=experts).items()}
    model = on_disk.make_model(family)
    return tokenizers.write_folder(folder, model, on_disk.config(family), extra=head, **options)


def plain(model: SpeculativeModel, count: int = 8) -> list[int]:
    """What mlx-lm decodes with the model below."""
    assert isinstance(model, StockAdapter)
    steps = generate_step(mx.array(reference.PROMPT), model.stock, max_tokens=count)  # type: ignore[arg-type]
    return [int(token) for token, _ in steps]


def dtypes(stock: nn.Module) -> set[mx.Dtype]:
    flat = cast(list[tuple[str, mx.array]], tree_flatten(stock.parameters()))
    return {array.dtype for _, array in flat}


def check_decodes(model: SpeculativeModel) -> None:
    """It gives what mlx-lm gives, up to the end of the text."""
    found = reference.ids_of(sp.Decoder(model).generate(reference.PROMPT, 8))
    assert found == plain(model)[: len(found)]
    assert len(found) == 8 or found[-1] in model.eos_token_ids


def tensors(file: Path) -> dict[str, mx.array]:
    found = mx.load(str(file))
    assert isinstance(found, dict)
    return found


# What comes in.


def test_a_model_knows_its_tokenizer(dense: Path) -> None:
    model, tokenizer = sp.load(dense)
    assert model.eos_token_ids == {61, tokenizers.EOS_ID}
    assert model.vocabulary == tokenizers.vocabulary()
    assert model.head is None
    assert tokenizer.eos_token_ids == {61, tokenizers.EOS_ID}
    check_decodes(model)


def test_a_folder_may_be_named_in_any_way(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dense.parent)
    for name in (str(dense), dense, "dense", "./dense", Path("dense")):
        assert sp.load(name, lazy=True)[0].vocab_size == tiny.VOCAB


def test_entries_of_the_config_can_be_replaced(dense: Path) -> None:
    model, _ = sp.load(dense, model_config={"rope_theta": 7.0})
    assert isinstance(model, StockAdapter)
    stock: Any = model.stock
    assert stock.args.rope_theta == 7.0


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_a_head_in_the_folder_is_attached(tmp_path: Path, family: str) -> None:
    model, _ = sp.load(headed(tmp_path, family))
    assert model.head is not None
    check_decodes(model)


def test_a_converted_qwen3_next_that_kept_its_head_in_the_same_file(tmp_path: Path) -> None:
    """mlx-lm itself refuses such a folder: the head's tensors are not in its model."""
    folder = headed(tmp_path, "qwen3_next")
    both = tensors(folder / "model.safetensors") | tensors(folder / "mtp.safetensors")
    mx.save_safetensors(str(folder / "model.safetensors"), both, metadata={"format": "mlx"})
    (folder / "mtp.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    model, _ = sp.load(folder)
    assert model.head is not None
    check_decodes(model)


def test_no_head_is_normal_and_a_promised_one_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = on_disk.config("qwen3_5", mtp_num_hidden_layers=1)
    tokenizers.write_folder(tmp_path, on_disk.make_model("qwen3_5"), config)
    with caplog.at_level(logging.INFO, logger="speculate"):
        assert sp.load(tmp_path)[0].head is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "config.json claims one" in record.message


def test_the_folders_own_head_can_be_left_alone(tmp_path: Path) -> None:
    assert sp.load(headed(tmp_path), head=False)[0].head is None


def test_a_head_from_elsewhere(tmp_path: Path, dense: Path) -> None:
    bare = tokenizers.write_folder(
        tmp_path / "bare", on_disk.make_model("qwen3_5"), on_disk.config("qwen3_5")
    )
    other = headed(tmp_path / "other")
    for place in (other, str(other), other / "mtp.safetensors"):
        model, _ = sp.load(bare, head=place)
        assert model.head is not None
        check_decodes(model)
    with pytest.raises(HeadNotFoundError, match="no multi-token-prediction head"):
        sp.load(bare, head=dense)
    with pytest.raises(UnsupportedModelError, match="no multi-token-prediction head is known"):
        sp.load(dense, head=other)


def test_a_head_for_a_model_in_memory(tmp_path: Path) -> None:
    folder = headed(tmp_path)
    stock = on_disk.make_model("qwen3_5")
    head = sp.load_mtp_head(folder, stock)
    model = sp.adapt(stock, head=head, eos_token_ids=[5])
    assert model.head is head
    again = sp.adapt(model, vocabulary={"a": 1})  # an adapter is one, too
    assert again.head is head
    assert again.eos_token_ids == {5}
    assert again.vocabulary == {"a": 1}
    assert isinstance(again, StockAdapter)
    assert again.stock is stock
    assert sp.load_mtp_head(folder, model) is not head
    with pytest.raises(HeadMismatchError, match=r"mtp\."):
        sp.load_mtp_head(folder, reference.get("qwen3_5").stock)
    with pytest.raises(UnsupportedModelError, match="object"):
        sp.load_mtp_head(folder, object())  # type: ignore[arg-type]


def test_a_damaged_head_is_not_passed_over(tmp_path: Path) -> None:
    folder = headed(tmp_path)
    head = tensors(folder / "mtp.safetensors")
    del head["mtp.fc.weight"]
    mx.save_safetensors(str(folder / "mtp.safetensors"), head)
    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight is missing"):
        sp.load(folder)
    assert sp.load(folder, head=False)[0].head is None


def test_quantised_weights_become_float32(tmp_path: Path) -> None:
    model, config = quantize_model(on_disk.make_model("qwen3_5"), on_disk.config(), 32, 8)
    head = {f"mtp.{name}": array for name, array in on_disk.make_head().items()}
    packed = {n: a for n, a in head.items() if a.ndim == 1}
    for name, array in head.items():
        if array.ndim == 2:
            parts = mx.quantize(array.astype(mx.bfloat16), 32, 8)
            ends = ("weight", "scales", "biases")
            packed.update({name.replace("weight", e): p for e, p in zip(ends, parts, strict=True)})
    tokenizers.write_folder(tmp_path, model, config, extra=packed)
    for dequantize in (False, True):
        loaded, _ = sp.load(tmp_path, dequantize=dequantize)
        assert isinstance(loaded, StockAdapter)
        stock: Any = loaded.stock
        assert dtypes(stock) == ({mx.float32} if dequantize else {mx.float32, mx.uint32})
        check_decodes(loaded)
    text = reference.text_of(9)
    wanted, _ = sp.load(tmp_path)
    one, other = (m.forward(mx.array([text]), m.make_cache()).logits for m in (wanted, loaded))
    assert mx.allclose(one, other, atol=1e-3)


def test_weights_with_scales_of_bytes_become_float32_too(tmp_path: Path) -> None:
    config = {"model_type": "llama", **tokenizers.DENSE}
    model, config = quantize_model(tiny.dense(), config, 32, 8, mode="mxfp8")
    loaded, _ = sp.load(tokenizers.write_folder(tmp_path, model, config), dequantize=True)
    assert isinstance(loaded, StockAdapter)
    stock: Any = loaded.stock
    assert dtypes(stock) == {mx.float32}
    check_decodes(loaded)


def test_a_config_that_repeats_a_key_loads_as_in_mlx_lm(dense: Path) -> None:
    """The last value counts: with the first one the weights would not fit. Said once a load."""
    text = (dense / "config.json").read_text()
    (dense / "config.json").write_text('{"hidden_size": 8, ' + text[1:])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model, _ = sp.load(dense)
    (warning,) = caught
    assert warning.category is SpeculateWarning
    assert f"{dense / 'config.json'}: repeats 'hidden_size'" in str(warning.message)
    check_decodes(model)


# What is bundled.


@pytest.mark.parametrize("name", ["hybrid", "draft", "windowed"])
def test_a_bundled_model(name: str) -> None:
    model, tokenizer = sp.load() if name == "hybrid" else sp.load_demo(name)
    assert (model.head is not None) == (name == "hybrid")
    assert isinstance(model, StockAdapter)
    stock: Any = model.stock
    assert dtypes(stock) == {mx.float32}
    text = sp.generate(model, tokenizer, demo_prompt(), max_tokens=12)
    wanted = generate_step(mx.array(tokenizer.encode(demo_prompt())), stock, max_tokens=12)
    assert text == tokenizer.decode([int(token) for token, _ in wanted])


def test_bundled_models_share_a_vocabulary() -> None:
    target, draft = sp.load()[0], sp.load_demo("draft")[0]
    assert target.vocabulary == draft.vocabulary
    sp.DraftModel(draft).attach(target)


def test_what_is_not_bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="hybrid, draft, windowed"):
        sp.load_demo("large")
    monkeypatch.setattr("speculate.loading.files", lambda _: tmp_path)
    with pytest.raises(CheckpointError, match="reinstall"):
        sp.load()
    with pytest.raises(CheckpointError, match="reinstall"):
        demo_prompt()


# What importing costs.


def test_importing_loads_nothing_of_mlx_lm() -> None:
    code = (
        "import sys, speculate, speculate.cli.main; "
        "heavy = {'mlx_lm', 'transformers', 'rich'} & set(sys.modules); sys.exit(bool(heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
