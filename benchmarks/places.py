"""Where each tensor of the bundled models stands in a larger one."""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from mlx_lm.models import qwen3, qwen3_5

from benchmarks.padding import Axis, Place, front, joined, repeated, spread

DenseArgs = qwen3.ModelArgs
HybridArgs = qwen3_5.TextModelArgs
Args = DenseArgs | HybridArgs

SAME: Final = Axis(1, np.arange(1))
"""An axis of one entry."""


def dense_places(small: DenseArgs, large: DenseArgs) -> dict[str, Place]:
    """Places of a Qwen3's tensors, by the ends of their names.

    Entry `i` of a head is rotated by an angle that depends on `i` over the head's width, so
    both of its halves are spread out.
    """
    half = spread(small.head_dim // 2, large.head_dim // small.head_dim)
    head = joined(half, half)
    return {**_attention(small, large, head, head), **_common(small, large)}


def hybrid_places(small: HybridArgs, large: HybridArgs) -> dict[str, Place]:
    """Places of a Qwen3.5's tensors and of its head's, by the ends of their names.

    Queries share a matrix with the gates, head by head. Keys and queries of a recurrent layer
    (Yang et al., "Gated Delta Networks", arXiv 2412.06464) have unit length at any width;
    queries are also divided by the root of the width, which the norm behind them undoes.
    """
    head = front(head_width(small), head_width(large))
    hidden = front(small.hidden_size, large.hidden_size)
    return {
        "fc.weight": Place([hidden, joined(hidden, hidden)]),
        **_delta(small, large),
        **_attention(small, large, head, joined(head, head)),
        **_common(small, large),
    }


def _common(small: Args, large: Args) -> dict[str, Place]:
    hidden = front(small.hidden_size, large.hidden_size)
    mlp = front(small.intermediate_size, large.intermediate_size)
    words = front(small.vocab_size, large.vocab_size)
    norm = Place([hidden], sqrt(small.hidden_size / large.hidden_size))
    return {
        "embed_tokens.weight": Place([words, hidden]),
        "gate_proj.weight": Place([mlp, hidden]),
        "up_proj.weight": Place([mlp, hidden]),
        "down_proj.weight": Place([hidden, mlp]),
        "input_layernorm.weight": norm,
        "post_attention_layernorm.weight": norm,
        "pre_fc_norm_embedding.weight": norm,
        "pre_fc_norm_hidden.weight": norm,
        "norm.weight": norm,
    }


def _attention(small: Args, large: Args, head: Axis, query: Axis) -> dict[str, Place]:
    """Full attention. It divides by the root of a head's width, against the query norm's gain."""
    hidden = front(small.hidden_size, large.hidden_size)
    heads = small.num_attention_heads, large.num_attention_heads
    pairs = repeated(small.num_key_value_heads, large.num_key_value_heads, head)
    return {
        "q_proj.weight": Place([repeated(*heads, query), hidden]),
        "k_proj.weight": Place([pairs, hidden]),
        "v_proj.weight": Place([pairs, hidden]),
        "o_proj.weight": Place([hidden, repeated(*heads, head)]),
        "q_norm.weight": Place([head]),
        "k_norm.weight": Place([head], sqrt(head_width(small) / head_width(large))),
    }


def _delta(small: HybridArgs, large: HybridArgs) -> dict[str, Place]:
    hidden = front(small.hidden_size, large.hidden_size)
    key = front(small.linear_key_head_dim, large.linear_key_head_dim)
    value = front(small.linear_value_head_dim, large.linear_value_head_dim)
    keys = repeated(small.linear_num_key_heads, large.linear_num_key_heads, key)
    heads = small.linear_num_value_heads, large.linear_num_value_heads
    values = repeated(*heads, value)
    mixed = joined(keys, keys, values)
    taps = front(small.linear_conv_kernel_dim, large.linear_conv_kernel_dim)
    narrower = small.linear_value_head_dim / large.linear_value_head_dim
    return {
        "in_proj_qkv.weight": Place([mixed, hidden]),
        "in_proj_z.weight": Place([values, hidden]),
        "in_proj_a.weight": Place([front(*heads), hidden]),
        "in_proj_b.weight": Place([front(*heads), hidden]),
        "conv1d.weight": Place([mixed, taps, SAME]),
        "A_log": Place([front(*heads)]),
        "dt_bias": Place([front(*heads)]),
        "linear_attn.norm.weight": Place([value], sqrt(narrower)),
        "out_proj.weight": Place([hidden, values]),
    }


def head_width(args: Args) -> int:
    """mlx-lm fills it in where a config leaves it out."""
    if args.head_dim is None:
        raise ValueError("the arguments have no head_dim")
    return args.head_dim
