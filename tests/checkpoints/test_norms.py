"""Norms hold gains, or gains minus one: decided group by group, with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import pytest

from speculate.checkpoints import Convention, find_head, read_head
from speculate.checkpoints.norms import decide
from tests.support import checkpoint_files as tiny

GROUPS = ("layer 0", "layer 0, queries and keys", "before fc", "final")


def conventions(head: Mapping[str, mx.array], trunk_is_raw: bool | None = None) -> list[str]:
    return [decision.convention for decision in decide(head, trunk_is_raw)]


def means(*values: float) -> tiny.Weights:
    """A head whose norms have these means: attention's two, the layer's two, fc's two, final."""
    names = ("q_norm", "k_norm", "input", "post", "embedding", "hidden", ".norm")
    where = [
        "layers.0.self_attn.q_norm",
        "layers.0.self_attn.k_norm",
        "layers.0.input_layernorm",
        "layers.0.post_attention_layernorm",
        "pre_fc_norm_embedding",
        "pre_fc_norm_hidden",
        "norm",
    ]
    assert len(values) == len(names) == len(where)
    key = mx.random.key(4)
    spread = mx.random.normal((32,), key=key) * 0.05
    spread = spread - spread.mean()
    return {f"{name}.weight": spread + mean for name, mean in zip(where, values, strict=True)}


@pytest.mark.parametrize("trunk_raw", [True, False])
@pytest.mark.parametrize("head_raw", [True, False])
def test_trunk_and_head_may_differ(tmp_path: Path, trunk_raw: bool, head_raw: bool) -> None:
    model, head = tiny.make_model(), tiny.make_head(layers=2)
    stored = tiny.prefixed(tiny.raw(head) if head_raw else head)
    files = {
        "model.safetensors": tiny.trunk_weights(model, stored_raw=trunk_raw),
        "mtp.safetensors": stored,
    }
    found = find_head(tiny.write(tmp_path, files))
    assert found.trunk_is_raw is trunk_raw
    tensors = read_head(found)
    assert {d.convention for d in tensors.norms} == {"raw" if head_raw else "gains"}
    assert all(bool(mx.array_equal(tensors.weights[name], head[name])) for name in head)


@pytest.mark.parametrize("head_raw", [True, False])
def test_a_file_without_a_trunk_speaks_for_itself(tmp_path: Path, head_raw: bool) -> None:
    head = tiny.make_head()
    stored = tiny.raw(head) if head_raw else head
    found = find_head(tiny.write(tmp_path, {"model.safetensors": stored}))
    assert found.trunk_is_raw is None
    tensors = read_head(found)
    assert all(bool(mx.array_equal(tensors.weights[name], head[name])) for name in head)


MIXED = {
    "the final norm is gains, the rest raw": ["norm.weight"],
    "a tool forgot what is not in a layer": [n for n in tiny.make_head() if "layers" in n],
    "queries and keys are gains, the rest raw": [n for n in tiny.make_head() if "self_attn" in n],
}


@pytest.mark.parametrize("gains", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("trunk_is_raw", [False, None])
def test_one_head_may_mix_the_two(gains: list[str], trunk_is_raw: bool | None) -> None:
    head, raw = tiny.make_head(), tiny.raw(tiny.make_head())
    if any("self_attn" in name for name in gains) and len(gains) < 8:
        # Told by size alone: gains of 0.6 could be raw ones of 1.6, as trained heads' are not.
        scale = {
            n: a + 1.2 for n, a in head.items() if n.endswith(("q_norm.weight", "k_norm.weight"))
        }
        head |= scale
    mixed = {name: head[name] if name in gains else raw[name] for name in head}
    for decision in decide(mixed, trunk_is_raw):
        for norm in decision.norms:
            expected = "gains" if f"{norm}.weight" in gains else "raw"
            assert decision.convention == expected, decision


# Means of published heads: raw ones of two sizes, and what conversions of three hold.
RAW = [
    (0.79, 0.78, 0.04, 0.21, -0.46, -0.16, 1.25),
    (0.746, 0.734, 0.303, 0.387, -0.46, -0.16, 2.58),
]
GAINS = [
    (1.79, 1.78, 1.04, 1.21, 0.54, 0.84, 2.25),
    (1.73, 1.74, 0.87, 0.90, 0.27, 0.49, 2.25),
    (1.746, 1.734, 1.303, 1.387, 0.54, 0.84, 3.58),
]


@pytest.mark.parametrize("trunk_is_raw", [True, False, None])
def test_published_heads_are_distinguished_whatever_the_trunk(trunk_is_raw: bool | None) -> None:
    for values in RAW:
        assert conventions(means(*values), trunk_is_raw) == ["raw"] * 4
    for values in GAINS:
        assert conventions(means(*values), trunk_is_raw) == ["gains"] * 4


@pytest.mark.parametrize(
    ("attention", "around"), [(0.0, 0.0), (1.0, 0.0), (1.0, -0.4), (-0.4, -0.4), (0.6, 0.1)]
)
@pytest.mark.parametrize("raw", [True, False])
def test_heads_of_other_sizes(attention: float, around: float, raw: bool) -> None:
    shift = 0.0 if raw else 1.0
    values = (attention, attention, around, around, -0.3, -0.3, -0.2)
    found = conventions(means(*(value + shift for value in values)))
    assert found == ["raw" if raw else "gains"] * 4


def test_the_norms_before_fc_do_not_decide() -> None:
    small = means(1.75, 1.75, 1.0, 1.1, 0.05, 0.1, 2.25)
    assert conventions(small) == ["gains"] * 4
    positive = means(0.75, 0.75, 0.05, 0.2, 0.3, 0.2, 1.25)
    assert conventions(positive) == ["raw"] * 4


def test_what_the_norms_leave_open_the_trunk_decides() -> None:
    open_ = means(0.9, 0.9, 0.47, 0.48, 0.3, 0.3, 1.4)
    assert conventions(open_, True) == ["raw"] * 4
    assert conventions(open_, False) == ["gains"] * 4


@pytest.mark.parametrize("asked", ["raw", "gains"])
def test_a_person_may_know_better(tmp_path: Path, asked: Convention) -> None:
    head = tiny.make_head()
    files = find_head(tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(head)}))
    tensors = read_head(files, norms=asked)
    assert {(d.convention, d.reason) for d in tensors.norms} == {(asked, "as asked for")}
    expected = head["norm.weight"] + (1.0 if asked == "raw" else 0.0)
    assert bool(mx.array_equal(tensors.weights["norm.weight"], expected))


def test_every_decision_says_why() -> None:
    decisions = decide(tiny.raw(tiny.make_head()), None)
    assert tuple(decision.group for decision in decisions) == GROUPS
    assert all(decision.reason and decision.mean < 0 for decision in decisions)
