"""The multi-token head as it is trained: on its own output, at every position at once.

Row i of the head pairs the trunk's hidden row i with token i + 1 and predicts token i + 2.
At depth d > 1 the head's own output of depth d - 1 takes the trunk row's place, one row later.
While decoding, such a row sees the committed rows (made from the trunk) up to where its chain
left them, then the chain's own rows; :func:`chain` reproduces that in one pass per depth.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.qwen3_5 import DecoderLayer

from tools.demo_models import fastmath


class Head(nn.Module):
    """The head's weights, under their names on disk."""

    def __init__(self, args: Any) -> None:
        nn.Module.__init__(self)
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        # The last layer of an interval is the one with full attention.
        self.layers = [DecoderLayer(args, args.full_attention_interval - 1)]
        self.norm = nn.RMSNorm(width, eps=eps)


Rows = tuple[mx.array, mx.array]
"""A depth's keys and values, [B, heads, T, D] each."""


def _project(attn: nn.Module, x: mx.array) -> tuple[mx.array, mx.array, Rows]:
    """Returns queries, the output's gate, and the keys and values of the rows."""
    b, t, _ = x.shape
    pair = attn.q_proj(x).reshape(b, t, attn.num_attention_heads, -1)
    queries, gate = mx.split(pair, 2, axis=-1)
    keys = attn.k_proj(x).reshape(b, t, attn.num_key_value_heads, -1)
    values = attn.v_proj(x).reshape(b, t, attn.num_key_value_heads, -1)
    queries = attn.rope(attn.q_norm(queries).transpose(0, 2, 1, 3))
    keys = attn.rope(attn.k_norm(keys).transpose(0, 2, 1, 3))
    return queries, gate.reshape(b, t, -1), (keys, values.transpose(0, 2, 1, 3))


def _later(x: mx.array, rows: int) -> mx.array:
    """Moves rows down axis -2, zeros coming in."""
    if rows == 0:
        return x
    pad = [(0, 0)] * (x.ndim - 2) + [(rows, 0), (0, 0)]
    return mx.pad(x, pad)[..., : x.shape[-2], :]


def _attend(attn: nn.Module, queries: mx.array, depths: list[Rows]) -> mx.array:
    """Attends to the committed rows and, after them, to the chain's own rows."""
    b, hq, t, d = queries.shape
    (keys, values), own = depths[0], depths[1:]
    hk, back = keys.shape[1], len(own)
    q = (queries * attn.scale).reshape(b, hk, hq // hk, t, d)
    scores = [q @ keys[:, :, None].swapaxes(-1, -2) + fastmath.causal_mask(t, back=back)]
    moved = [
        (_later(k, back - 1 - m)[:, :, None], _later(v, back - 1 - m)[:, :, None])
        for m, (k, v) in enumerate(own)
    ]
    scores += [mx.sum(q * k, axis=-1, keepdims=True) for k, _ in moved]
    weights = fastmath.softmax(mx.concatenate(scores, axis=-1))
    out = weights[..., :t] @ values[:, :, None]
    for m, (_, v) in enumerate(moved):
        out = out + weights[..., t + m : t + m + 1] * v
    return out.reshape(b, hq, t, d)


def chain(
    head: Head, embed: nn.Embedding, hidden: mx.array, following: mx.array, depth: int
) -> list[mx.array]:
    """Runs the head on its own output, as if every draft so far had been right.

    Args:
        head: The head.
        embed: The trunk's token embedding.
        hidden: The trunk's rows after its final norm, [B, T, D].
        following: The token after each row, [B, T].
        depth: How many tokens ahead to go.

    Returns:
        For each depth the head's rows after its norm, [B, T, D]; row j predicts the token after
        ``following[:, j]``.  The first ``d - 1`` rows of depth d begin before the text: skip them.
    """
    embedded = head.pre_fc_norm_embedding(embed(following))
    layer = head.layers[0]
    seen: list[Rows] = []
    outs: list[mx.array] = []
    for _ in range(depth):
        x = head.fc(mx.concatenate([embedded, head.pre_fc_norm_hidden(hidden)], axis=-1))
        queries, gate, rows = _project(layer.self_attn, layer.input_layernorm(x))
        seen.append(rows)
        mixed = _attend(layer.self_attn, queries, seen).transpose(0, 2, 1, 3)
        mixed = mixed.reshape(*gate.shape) * fastmath.sigmoid(gate)
        x = x + layer.self_attn.o_proj(mixed)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        outs.append(head.norm(x))
        hidden = _later(outs[-1], 1)
    return outs
