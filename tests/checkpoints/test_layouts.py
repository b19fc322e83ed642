"""Heads as people store them: every layout gives the same head, and leaves the trunk alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from speculate.checkpoints import HeadTensors, find_head, has_head, load_trunk, read_head
from speculate.errors import CheckpointError, HeadNotFoundError, SpeculateWarning
from speculate.models.mtp import build_head
from tests.support import checkpoint_files as tiny

PREFIXES = [
    "mtp.",
    "model.mtp.",
    "language_model.mtp.",
    "model.language_model.mtp.",
    "language_model.model.mtp.",
]


def equal(found: Mapping[str, mx.array], expected: Mapping[str, mx.array]) -> bool:
    """Same names, same dtypes, same bits."""
    return found.keys() == expected.keys() and all(
        found[n].dtype == a.dtype and bool(mx.array_equal(found[n], a)) for n, a in expected.items()
    )


def read(path: Path) -> HeadTensors:
    return read_head(find_head(path))


def logits(model: Any, tensors: HeadTensors) -> mx.array:
    head = build_head(tiny.as_stock(model), tensors)
    return head.step(*tiny.rows(6), head.make_cache()).logits


def parameters(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


# Where the tensors are.


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("file", ["mtp.safetensors", "model-mtp.safetensors", "model.safetensors"])
def test_a_head_is_found_in_any_file_and_the_trunk_is_as_without_it(
    tmp_path: Path, file: str, listed: bool
) -> None:
    model, head = tiny.make_model(), tiny.make_head()
    trunk = {"model.safetensors": tiny.trunk_weights(model)}
    files: dict[str, tiny.Weights] = {**trunk}
    files[file] = {**files.get(file, {}), **tiny.prefixed(head)}
    listing = list(files) if listed else ["model.safetensors"]
    plain = load_model(tiny.write(tmp_path / "plain", trunk))[0]
    folder = tiny.write(tmp_path / "both", files, listed=listing)
    assert has_head(folder) and not has_head(tmp_path / "plain")
    assert equal(read(folder).weights, head)
    assert equal(parameters(load_trunk(folder)[0]), parameters(plain))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_prefix_means_the_same_head(tmp_path: Path, prefix: str) -> None:
    model, head = tiny.make_model(), tiny.make_head()
    files = {"model.safetensors": {**tiny.trunk_weights(model), **tiny.prefixed(head, prefix)}}
    found = find_head(tiny.write(tmp_path, files))
    assert found.prefix == prefix
    assert equal(read_head(found).weights, head)


def test_a_drafter_has_bare_names_and_may_be_named_by_folder_or_file(tmp_path: Path) -> None:
    head = tiny.make_head()
    drafter = {"model_type": "qwen3_5_mtp", "block_size": 3, **tiny.config()}
    folder = tiny.write(tmp_path / "drafter", {"model.safetensors": head}, config=drafter)
    beside = tiny.write(tmp_path / "beside", {
        "model.safetensors": tiny.trunk_weights(tiny.make_model()),
        "mtp.safetensors": head,
    })  # fmt: skip
    for path in (folder, folder / "model.safetensors", beside, beside / "mtp.safetensors"):
        assert find_head(path).prefix == ""
        assert equal(read(path).weights, head)


def test_a_file_in_a_folder_below_counts_where_the_index_lists_it(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, {"model.safetensors": tiny.trunk_weights(tiny.make_model())})
    tiny.write(tmp_path / "extra", {"mtp.safetensors": tiny.prefixed(tiny.make_head())})
    assert not has_head(folder)
    names = dict.fromkeys(tiny.prefixed(tiny.make_head()), "extra/mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert has_head(folder)


def test_a_promise_without_tensors_is_no_head(tmp_path: Path) -> None:
    promise = tiny.config(mtp_num_hidden_layers=1)
    files = {"model.safetensors": tiny.trunk_weights(tiny.make_model())}
    folder = tiny.write(tmp_path, files, config=promise)
    with pytest.raises(HeadNotFoundError) as caught:
        find_head(folder)
    for part in (str(folder), "mtp.*", "model.safetensors", "claims one"):
        assert part in str(caught.value)


def test_an_empty_folder_and_one_of_pickles_have_no_head(tmp_path: Path) -> None:
    with pytest.raises(HeadNotFoundError, match=r"no \.safetensors file"):
        find_head(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(HeadNotFoundError, match=r"never opened: pytorch_model\.bin"):
        find_head(tmp_path)


def test_a_listed_file_that_is_absent_is_an_error_if_the_head_is_in_it(tmp_path: Path) -> None:
    trunk = tiny.trunk_weights(tiny.make_model())
    files = {"model.safetensors": trunk, "mtp.safetensors": tiny.prefixed(tiny.make_head())}
    folder = tiny.write(tmp_path, files, listed=list(files))
    (folder / "model.safetensors").unlink()
    assert has_head(folder)
    (folder / "mtp.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"mtp\.safetensors, which is missing"):
        find_head(folder)


def test_only_the_index_decides_between_two_files(tmp_path: Path) -> None:
    head, other = tiny.make_head(), {n: a + 1 for n, a in tiny.make_head().items()}
    files = {"a.safetensors": tiny.prefixed(other), "b.safetensors": tiny.prefixed(head)}
    assert equal(read(tiny.write(tmp_path / "1", files, listed=["b.safetensors"])).weights, head)
    with pytest.raises(CheckpointError, match=r"both a\.safetensors and b\.safetensors"):
        find_head(tiny.write(tmp_path / "2", files))
    two = {"a.safetensors": tiny.prefixed(head), "b.safetensors": tiny.prefixed(head, "model.mtp.")}
    with pytest.raises(CheckpointError, match="more than one head"):
        find_head(tiny.write(tmp_path / "3", two))
    assert equal(read(tmp_path / "2" / "b.safetensors").weights, head)


# What the tensors are.

Stored = Callable[[Mapping[str, mx.array]], tiny.Weights]
STORED: dict[str, Stored] = {"fused": tiny.fused, "one by one": tiny.single, "stacked": dict}


@pytest.mark.parametrize("layout", STORED)
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
def test_experts_are_read_from_every_layout(tmp_path: Path, layout: str, family: str) -> None:
    head = tiny.make_head(experts=True, layers=2)
    stored = tiny.prefixed(STORED[layout](head))
    found = read(tiny.write(tmp_path, {"mtp.safetensors": stored}, config=tiny.config(family)))
    assert found.experts == (layout, layout)
    assert equal(found.weights, head)


def test_a_dense_head_fits_under_a_trunk_of_experts(tmp_path: Path) -> None:
    head = tiny.make_head(inner=128)
    found = read(tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(head)}))
    assert found.experts == ("dense",)
    assert logits(tiny.make_model("qwen3_5_moe"), found).shape == (1, 6, tiny.VOCABULARY)


@pytest.mark.parametrize("expert", [0, 2, 3])
def test_a_missing_expert_is_named(tmp_path: Path, expert: int) -> None:
    stored = tiny.prefixed(tiny.single(tiny.make_head(experts=True)))
    del stored[f"mtp.layers.0.mlp.experts.{expert}.up_proj.weight"]
    name = rf"mtp\.safetensors: .*experts\.{expert}\.up_proj\.weight: is missing"
    with pytest.raises(CheckpointError, match=name):
        read(tiny.write(tmp_path, {"mtp.safetensors": stored}))


def test_an_expert_of_another_size_is_named(tmp_path: Path) -> None:
    stored = tiny.prefixed(tiny.single(tiny.make_head(experts=True)))
    stored["mtp.layers.0.mlp.experts.2.up_proj.weight"] = mx.zeros((8, 8))
    with pytest.raises(CheckpointError, match=r"experts\.2\.up_proj\.weight: is"):
        read(tiny.write(tmp_path, {"mtp.safetensors": stored}))


def test_leftovers_are_reported_by_name_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = tiny.make_head()
    odd = {"mtp.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros((8,))}
    with caplog.at_level(logging.WARNING):
        found = read(tiny.write(tmp_path, {"mtp.safetensors": {**tiny.prefixed(head), **odd}}))
    assert found.unknown_tensors == tuple(odd)
    assert "rotary_emb.inv_freq" in caplog.text
    assert equal(found.weights, head)


def test_half_a_head_is_refused_by_name(tmp_path: Path) -> None:
    stored = tiny.prefixed(tiny.make_head(), "language_model.mtp.")
    del stored["language_model.mtp.layers.0.self_attn.o_proj.weight"]
    with pytest.raises(CheckpointError, match=r"language_model\.mtp\.layers\.0\.self_attn\.o_proj"):
        read(tiny.write(tmp_path, {"mtp.safetensors": stored}))


@pytest.mark.parametrize(("flag", "refused"), [(True, True), (False, False), (None, True)])
def test_embeddings_of_its_own_are_refused(
    tmp_path: Path, flag: bool | None, refused: bool
) -> None:
    changes: dict[str, Any] = {} if flag is None else {"mtp_use_dedicated_embeddings": flag}
    own = {"mtp.embed_tokens.weight": mx.zeros((tiny.VOCABULARY, tiny.WIDTH))}
    files = {"mtp.safetensors": {**tiny.prefixed(tiny.make_head()), **own}}
    folder = tiny.write(tmp_path, files, config=tiny.config(**changes))
    if refused:
        with pytest.raises(CheckpointError, match=r"mtp\.embed_tokens\.weight"):
            read(folder)
    else:
        assert read(folder).unknown_tensors == ("mtp.embed_tokens.weight",)


def test_reading_twice_gives_the_same_and_changes_no_file(tmp_path: Path) -> None:
    model, stored = tiny.make_model(), tiny.prefixed(tiny.raw(tiny.make_head()))
    folder = tiny.write(tmp_path, {"mtp.safetensors": stored})
    before = (folder / "mtp.safetensors").read_bytes()
    one, other = read(folder), read(folder)
    assert bool(mx.array_equal(logits(model, one), logits(model, other)))
    assert bool(mx.array_equal(logits(model, one), logits(model, one)))
    assert (folder / "mtp.safetensors").read_bytes() == before
    # What was read can be stored again, and is then read as it is.
    again = tiny.write(tmp_path / "again", {"mtp.safetensors": tiny.prefixed(one.weights)})
    assert equal(read(again).weights, one.weights)


def test_of_a_key_that_is_repeated_the_last_value_counts_as_in_mlx_lm(tmp_path: Path) -> None:
    """In a config and in an index, at any depth. A header that does so is refused."""
    head = tiny.prefixed(tiny.make_head())
    folder = tiny.write(tmp_path, {"a.safetensors": head, "b.safetensors": head})
    (folder / "config.json").write_text('{"a": 1, "b": {"c": 2, "c": 3}, "a": 4}')
    both = [f'"{name}": "{file}.safetensors"' for file in "ab" for name in head]
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {' + ", ".join(both) + "}}")
    with pytest.warns(SpeculateWarning) as caught:
        files = find_head(folder)
    assert files.config == {"a": 4, "b": {"c": 3}}
    assert {tensor.path.name for tensor in files.tensors.values()} == {"b.safetensors"}
    said = {str(warning.message) for warning in caught}
    assert len(said) == 2 and all("the last value counts" in text for text in said)
    assert any(f"{folder / 'config.json'}: repeats 'c', 'a'" in text for text in said)
    assert any(f"{index}: repeats 'mtp." in text and "more" in text for text in said)
