"""The head as a module: what it computes, what it borrows, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama

from speculate.backends.group import group_of
from speculate.checkpoints import HeadTensors
from speculate.errors import HeadMismatchError, OptionError, UnsupportedModelError
from speculate.models.mtp import Feed, Packing, build_head
from speculate.protocols import MTPHead
from tests.support import checkpoint_files as tiny


@attrs.frozen
class Packed:
    bits: int
    group_size: int
    mode: str
    global_scale: bool = False


@attrs.frozen(eq=False)
class Tensors:
    weights: Mapping[str, mx.array]
    quantization: Mapping[str, Packing] = attrs.field(factory=dict)


def attach(model: Any, head: Mapping[str, mx.array], feed: Feed = "post_norm") -> MTPHead:
    return build_head(tiny.as_stock(model), Tensors(head), feed=feed)


def steps(head: MTPHead, hidden: mx.array, tokens: mx.array, sizes: list[int]) -> list[mx.array]:
    """Logits, hidden states and keys after feeding blocks of these sizes."""
    cache, outs, start = head.make_cache(), [], 0
    for size in sizes:
        part = slice(start, start + size)
        outs.append(head.step(hidden[:, part], tokens[:, part], cache))
        start += size
    keys = [array[..., :start, :] for layer in cache for array in layer.arrays()]
    logits = mx.concatenate([out.logits for out in outs], axis=1)
    return [logits, mx.concatenate([out.hidden for out in outs], axis=1), *keys]


def equal(one: list[mx.array], other: list[mx.array]) -> bool:
    return all(bool(mx.array_equal(a, b)) for a, b in zip(one, other, strict=True))


# What it computes.


def norm(x: mx.array, gains: mx.array) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gains


def attention(w: Mapping[str, mx.array], x: mx.array, base: float) -> mx.array:
    """Gated attention over `x` `(T, width)`, written out."""
    total, size = x.shape[0], tiny.HEAD_DIM
    both = (x @ w["self_attn.q_proj.weight"].T).reshape(total, tiny.HEADS, 2 * size)
    queries, gate = both[..., :size], both[..., size:].reshape(total, -1)
    keys = (x @ w["self_attn.k_proj.weight"].T).reshape(total, tiny.KV_HEADS, size)
    values = (x @ w["self_attn.v_proj.weight"].T).reshape(total, tiny.KV_HEADS, size)

    def rotated(rows: mx.array) -> mx.array:
        return mx.fast.rope(
            rows.transpose(1, 0, 2)[None], size // 4, traditional=False, base=base, scale=1.0,
            offset=0,
        )[0]  # fmt: skip

    q = rotated(norm(queries, w["self_attn.q_norm.weight"]))
    k = mx.repeat(rotated(norm(keys, w["self_attn.k_norm.weight"])), 2, axis=0)
    v = mx.repeat(values.transpose(1, 0, 2), 2, axis=0)
    scores = q @ k.swapaxes(1, 2) / size**0.5
    scores = mx.where(mx.tri(total, dtype=mx.bool_), scores, -mx.inf)
    mixed = (mx.softmax(scores, axis=-1) @ v).transpose(1, 0, 2).reshape(total, -1)
    return (mixed * mx.sigmoid(gate)) @ w["self_attn.o_proj.weight"].T


def written_out(model: Any, head: tiny.Weights, hidden: mx.array, tokens: mx.array) -> mx.array:
    """The post-norm output `(1, T, width)` of a dense head, without any module."""
    text = model.language_model
    w = {n.removeprefix("layers.0."): a for n, a in head.items()}
    pair = [
        norm(text.model.embed_tokens(tokens)[0], w["pre_fc_norm_embedding.weight"]),
        norm(hidden[0], w["pre_fc_norm_hidden.weight"]),
    ]
    x = mx.concatenate(pair, axis=-1) @ w["fc.weight"].T
    x = x + attention(w, norm(x, w["input_layernorm.weight"]), text.args.rope_theta)
    y = norm(x, w["post_attention_layernorm.weight"])
    y = nn.silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
    x = x + y @ w["mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"])[None]


def test_a_step_computes_what_the_head_is_defined_as() -> None:
    model, weights = tiny.make_model(), tiny.make_head()
    head, (hidden, tokens) = attach(model, weights), tiny.rows(9)
    out = head.step(hidden, tokens, head.make_cache())
    expected = written_out(model, weights, hidden, tokens)
    assert out.hidden.shape == (1, 9, tiny.WIDTH)
    assert bool(mx.allclose(out.hidden, expected, rtol=1e-4, atol=1e-4))
    assert bool(mx.array_equal(out.logits, model.language_model.lm_head(out.hidden)))


FAMILIES = [("qwen3_5", False), ("qwen3_5_moe", True), ("qwen3_5_moe", False), ("qwen3_next", True)]


@pytest.mark.parametrize(("family", "experts"), FAMILIES)
@pytest.mark.parametrize("sizes", [[1] * 40, [3, 1, 4, 32], [39, 1]])
def test_a_block_equals_single_steps_bit_for_bit(
    family: str, experts: bool, sizes: list[int]
) -> None:
    head = attach(tiny.make_model(family), tiny.make_head(experts=experts, layers=2))
    hidden, tokens = tiny.rows(40)
    assert equal(steps(head, hidden, tokens, sizes), steps(head, hidden, tokens, [40]))


def test_a_quantised_head_takes_blocks_as_single_steps() -> None:
    model, weights = tiny.make_model(), tiny.make_head()
    modules = tiny.matrices(weights)
    packed = tiny.quantised(weights, dict.fromkeys(modules, (4, 32, "affine")))
    quantization = dict.fromkeys(modules, Packed(4, 32, "affine"))
    head = build_head(tiny.as_stock(model), Tensors(packed, quantization))
    hidden, tokens = tiny.rows(12)
    assert equal(steps(head, hidden, tokens, [1] * 12), steps(head, hidden, tokens, [12]))


def test_rows_rewound_leave_no_trace() -> None:
    head, (hidden, tokens) = attach(tiny.make_model(), tiny.make_head(layers=2)), tiny.rows(9)
    cache = head.make_cache()
    head.step(hidden[:, :7], tokens[:, :7], cache)
    for layer in cache:
        assert layer.trim(3) == 3
    out = head.step(hidden[:, 4:], tokens[:, 4:], cache)
    whole = head.step(hidden, tokens, head.make_cache())
    assert bool(mx.array_equal(out.logits, whole.logits[:, 4:]))


def test_a_cache_that_starts_late_gives_its_rows_their_true_positions() -> None:
    head, (hidden, tokens) = attach(tiny.make_model(), tiny.make_head()), tiny.rows(5)
    early, late = head.make_cache(), head.make_cache(7)
    assert [layer.length() for layer in late] == [7]
    one, other = head.step(hidden, tokens, early), head.step(hidden, tokens, late)
    assert [layer.length() for layer in late] == [12]
    assert not mx.allclose(early[0].arrays()[0][..., :5, :], late[0].arrays()[0][..., :5, :])
    assert bool(mx.allclose(one.logits, other.logits, rtol=1e-3, atol=1e-3))


def test_a_chain_is_fed_the_post_norm_output_unless_asked_otherwise() -> None:
    model, weights = tiny.make_model(), tiny.make_head()
    hidden, tokens = tiny.rows(4)
    heads = [attach(model, weights), attach(model, weights, feed="pre_norm")]
    post, pre = (head.step(hidden, tokens, head.make_cache()) for head in heads)
    assert bool(mx.array_equal(post.logits, pre.logits))
    assert bool(mx.allclose(norm(pre.hidden, weights["norm.weight"]), post.hidden, atol=1e-4))
    assert not mx.allclose(pre.hidden, post.hidden)
    with pytest.raises(OptionError, match="feed"):
        attach(model, weights, feed="sideways")  # type: ignore[arg-type]


def test_its_caches_are_one_group() -> None:
    cache = attach(tiny.make_model(), tiny.make_head(layers=2)).make_cache()
    group = group_of(cache)
    assert group is not None
    assert group.members() == cache


# What it borrows.


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mode", [None, "affine", "mxfp4", "mxfp8", "nvfp4"])
def test_logits_come_from_the_matrix_of_the_target(tied: bool, mode: str | None) -> None:
    model = tiny.make_model(tie_word_embeddings=tied)
    if mode:
        nn.quantize(model, group_size={"affine": 32, "nvfp4": 16}.get(mode, 32), mode=mode)
    head, (hidden, tokens) = attach(model, tiny.make_head()), tiny.rows(5)
    out = head.step(hidden, tokens, head.make_cache())
    text = model.language_model
    expected = text.model.embed_tokens.as_linear if tied else text.lm_head
    assert bool(mx.array_equal(out.logits, expected(out.hidden)))


def test_a_target_that_is_quantised_later_takes_its_head_along() -> None:
    model = tiny.make_model()
    head, (hidden, tokens) = attach(model, tiny.make_head()), tiny.rows(5)
    nn.quantize(model, group_size=32, bits=4)
    out = head.step(hidden, tokens, head.make_cache())
    assert bool(mx.array_equal(out.logits, model.language_model.lm_head(out.hidden)))


def test_qwen3_next_is_served_too() -> None:
    model = tiny.make_model("qwen3_next")
    head, (hidden, tokens) = attach(model, tiny.make_head(experts=True)), tiny.rows(5)
    out = head.step(hidden, tokens, head.make_cache())
    assert bool(mx.array_equal(out.logits, model.lm_head(out.hidden)))


def test_attaching_changes_neither_the_model_nor_anyone_elses_random_numbers() -> None:
    model, tokens = tiny.make_model(), tiny.rows(6)[1]
    before, names = model(tokens), [name for name, _ in model.named_modules()]
    mx.random.seed(11)
    expected = mx.random.uniform(shape=(8,))
    mx.random.seed(11)
    attach(model, tiny.make_head())
    assert bool(mx.array_equal(mx.random.uniform(shape=(8,)), expected))
    assert bool(mx.array_equal(model(tokens), before))
    assert [name for name, _ in model.named_modules()] == names


def test_a_head_works_in_the_numbers_of_its_trunk() -> None:
    model = tiny.make_model()
    model.set_dtype(mx.bfloat16)
    head, (hidden, tokens) = attach(model, tiny.make_head()), tiny.rows(3)
    out = head.step(hidden.astype(mx.bfloat16), tokens, head.make_cache())
    assert out.logits.dtype == out.hidden.dtype == mx.bfloat16


def test_a_dense_head_under_experts_brings_its_own_width() -> None:
    model, weights = tiny.make_model("qwen3_5_moe"), tiny.make_head(inner=160)
    head, (hidden, tokens) = attach(model, weights), tiny.rows(4)
    out = head.step(hidden, tokens, head.make_cache())
    expected = written_out(model, weights, hidden, tokens)
    assert bool(mx.allclose(out.hidden, expected, rtol=1e-4, atol=1e-4))


# What it refuses.


def test_a_tensor_of_another_size_is_named_with_both_shapes() -> None:
    weights = tiny.make_head(inner=128)
    with pytest.raises(HeadMismatchError, match=r"gate_proj.*\(128, 64\).*\(96, 64\)"):
        attach(tiny.make_model(), weights)
    weights = {**tiny.make_head(), "fc.weight": mx.zeros((64, 64))}
    with pytest.raises(HeadMismatchError, match=r"mtp\.fc\.weight.*\(64, 64\).*\(64, 128\)"):
        attach(tiny.make_model(), weights)


def test_a_missing_or_foreign_tensor_is_named() -> None:
    weights = tiny.make_head()
    lost = {n: a for n, a in weights.items() if "v_proj" not in n}
    with pytest.raises(HeadMismatchError, match=r"v_proj\.weight: is missing"):
        attach(tiny.make_model(), lost)
    with pytest.raises(HeadMismatchError, match=r"q_proj\.bias"):
        attach(tiny.make_model(), {**weights, "layers.0.self_attn.q_proj.bias": mx.zeros((128,))})


def test_experts_need_a_trunk_that_has_some() -> None:
    with pytest.raises(HeadMismatchError, match=r"mlp\.gate"):
        attach(tiny.make_model(), tiny.make_head(experts=True))


def test_a_family_without_heads_is_refused() -> None:
    args = llama.ModelArgs("llama", 32, 1, 64, 2, 1e-5, 32)
    with pytest.raises(UnsupportedModelError, match="llama"):
        attach(llama.Model(args), tiny.make_head())


def test_a_step_needs_a_hidden_state_for_each_token() -> None:
    head, (hidden, tokens) = attach(tiny.make_model(), tiny.make_head()), tiny.rows(4)
    cache = head.make_cache()
    for bad in ((hidden[:, :3], tokens), (hidden, tokens[0]), (hidden[0], tokens)):
        with pytest.raises(OptionError, match="hidden"):
            head.step(*bad, cache)
    assert cache[0].length() == 0


class Broken(nn.Module):
    def __init__(self) -> None:
        nn.Module.__init__(self)

    def __call__(self, x: mx.array) -> mx.array:
        raise ZeroDivisionError


def test_a_step_that_fails_leaves_no_rows() -> None:
    model = tiny.make_model()
    head, (hidden, tokens) = attach(model, tiny.make_head(layers=2)), tiny.rows(4)
    cache = head.make_cache()
    head.step(hidden, tokens, cache)
    model.language_model.lm_head = Broken()
    with pytest.raises(ZeroDivisionError):
        head.step(hidden, tokens, cache)
    assert [layer.length() for layer in cache] == [4, 4]


def test_the_reader_gives_what_the_builder_takes() -> None:
    def check(tensors: HeadTensors) -> MTPHead:
        return build_head(tiny.as_stock(tiny.make_model()), tensors)

    assert callable(check)
