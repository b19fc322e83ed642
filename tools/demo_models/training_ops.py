"""Swaps stock operations for the training-time ones, in mlx-lm's own modules, for a while.

The models stay mlx-lm's: only what their modules call by name is replaced, and put back after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn

from tools.demo_models import fastmath, gdn_chunked


def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return fastmath.silu(gate) * x


def _precise_swiglu(hidden: mx.array, gate: mx.array, x: mx.array) -> mx.array:
    del hidden
    return fastmath.silu(gate) * x


def _swiglu_oai(gate: mx.array, x: mx.array, alpha: float = 1.702, limit: float = 7.0) -> mx.array:
    gate = mx.minimum(gate, limit)
    return (mx.clip(x, -limit, limit) + 1.0) * gate * fastmath.sigmoid(alpha * gate)


def _attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any = None,
    scale: float = 1.0,
    mask: Any = None,
    sinks: mx.array | None = None,
) -> mx.array:
    del cache
    if isinstance(mask, str) or mask is None:
        added = fastmath.causal_mask(queries.shape[2])
    else:
        added = mx.where(mask, 0.0, -1e9)
    return fastmath.attention(queries, keys, values, scale=scale, mask=added, sinks=sinks)


def _depthwise(self: nn.Conv1d, x: mx.array) -> mx.array:
    width = self.weight.shape[1]
    length = x.shape[1] - width + 1
    taps = [x[:, j : j + length] * self.weight[:, j, 0] for j in range(width)]
    return mx.sum(mx.stack(taps), axis=0) if width > 8 else sum(taps[1:], taps[0])


_SWAPS: tuple[tuple[str, Any], ...] = (
    ("mlx_lm.models.qwen3_5.gated_delta_update", gdn_chunked.gated_delta_update),
    ("mlx_lm.models.qwen3_next.swiglu", _swiglu),
    ("mlx_lm.models.qwen3_next.precise_swiglu", _precise_swiglu),
    ("mlx_lm.models.qwen3_next.scaled_dot_product_attention", _attention),
    ("mlx_lm.models.qwen3.swiglu", _swiglu),
    ("mlx_lm.models.qwen3.scaled_dot_product_attention", _attention),
    ("mlx_lm.models.gpt_oss.scaled_dot_product_attention", _attention),
    ("mlx_lm.models.activations.swiglu_oai", _swiglu_oai),
    ("mlx.nn.silu", fastmath.silu),
    ("mlx.core.sigmoid", fastmath.sigmoid),
    ("mlx.nn.Conv1d.__call__", _depthwise),
)


@contextmanager
def training_ops() -> Iterator[None]:
    """Makes mlx-lm's models use the training-time operations inside the block."""
    with ExitStack() as stack:
        for name, stand_in in _SWAPS:
            stack.enter_context(patch(name, stand_in))
        yield
