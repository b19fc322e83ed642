"""One Gated DeltaNet layer, driven over its own submodules so that it can be taken back.

Same operations in the same order as mlx-lm's layers, so that the result is bit-equal; in
addition it records what the recurrence consumed. Recurrence: Yang et al., "Gated Delta
Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464, equation 10.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import (
    compute_g,
    gated_delta_ops,
    gated_delta_update,
    normalize_qk,
)
from typing_extensions import Protocol

from speculate.backends.group import RECORD_WINDOW
from speculate.models.output import Linear
from speculate.protocols import Entries, RecordsRollback


class GatedNorm(Protocol):
    """A stock norm with an output gate."""

    def __call__(self, x: mx.array, gate: mx.array, /) -> mx.array: ...


class GatedDeltaLayer(Protocol):
    """What Qwen3.5's and Qwen3-Next's layers have in common."""

    num_v_heads: int
    num_k_heads: int
    head_k_dim: int
    head_v_dim: int
    key_dim: int
    conv_dim: int
    conv_kernel_size: int
    training: bool
    A_log: mx.array
    dt_bias: mx.array
    conv1d: Linear
    norm: GatedNorm
    out_proj: Linear


class StateSlots(Protocol):
    """A state cache with a slot for the conv window and one for the recurrent state."""

    def __getitem__(self, index: int, /) -> mx.array | None: ...
    def __setitem__(self, index: int, value: mx.array | None, /) -> None: ...
    def advance(self, n: int, /) -> None: ...


@attrs.frozen(eq=False)
class Projected:
    """A layer's input projections.

    Attributes:
        qkv: `(1, T, conv_dim)`, before the convolution.
        z: `(1, T, value heads, value width)`, the output gate.
        a: `(1, T, value heads)`, the decay before its activation.
        b: `(1, T, value heads)`, the write strength before its activation.
    """

    qkv: mx.array
    z: mx.array
    a: mx.array
    b: mx.array


@attrs.frozen(eq=False)
class Consumed:
    """What the recurrence of one block reads.

    Attributes:
        q: `(1, T, key heads, key width)`, normalised.
        k: `(1, T, key heads, key width)`, normalised.
        v: `(1, T, value heads, value width)`.
        a: As in `Projected`.
        b: As in `Projected`.
    """

    q: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array

    def rows(self, start: int, stop: int) -> Consumed:
        """Tokens `start` to `stop` of the block."""
        parts = (self.q, self.k, self.v, self.a, self.b)
        return Consumed(*(part[:, start:stop] for part in parts))


StateAfter = Callable[[int], mx.array]
"""The recurrent state after the first `m` tokens of a block, `m` at least 1."""


def gated_delta(layer: GatedDeltaLayer, projected: Projected, cache: StateSlots) -> mx.array:
    """Run one layer over `T` tokens and advance its cache.

    Returns:
        `(1, T, width)`, the layer's output before the residual.
    """
    window = layer.conv_kernel_size - 1
    before = (cache[0], cache[1])
    rows = projected.qkv.shape[1]
    conv_input = _behind(before[0], projected.qkv, window)
    consumed = _convolve(layer, conv_input, projected)
    recorder = cache if isinstance(cache, RecordsRollback) and cache.recording() else None
    out, state_after = _recur(layer, consumed, before[1], every_state=recorder is not None)

    def entries_after(m: int) -> Entries:
        return mx.contiguous(conv_input[:, m : m + window]), state_after(m)

    for slot, entry in enumerate(entries_after(rows)):
        cache[slot] = entry
    cache.advance(rows)
    if recorder is not None:
        recorder.record_rollback(rows, entries_after, before)
    gated = layer.norm(out, projected.z)
    return layer.out_proj(gated.reshape(1, rows, -1))


def _behind(conv_window: mx.array | None, qkv: mx.array, window: int) -> mx.array:
    """The block's conv input: the last rows of the text so far, then the new ones."""
    if conv_window is None:
        conv_window = mx.zeros((1, window, qkv.shape[2]), dtype=qkv.dtype)
    return mx.concatenate([conv_window, qkv], axis=1)


def _convolve(layer: GatedDeltaLayer, conv_input: mx.array, projected: Projected) -> Consumed:
    mixed: mx.array = nn.silu(layer.conv1d(conv_input))
    q, k, v = mx.split(mixed, [layer.key_dim, 2 * layer.key_dim], -1)
    keys = (1, projected.qkv.shape[1], layer.num_k_heads, layer.head_k_dim)
    values = (1, projected.qkv.shape[1], layer.num_v_heads, layer.head_v_dim)
    q, k = normalize_qk(
        q.reshape(keys), k.reshape(keys), inv_scale=layer.head_k_dim**-0.5, eps=1e-6
    )
    return Consumed(q, k, v.reshape(values), projected.a, projected.b)


def _recur(
    layer: GatedDeltaLayer, consumed: Consumed, state: mx.array | None, *, every_state: bool
) -> tuple[mx.array, StateAfter]:
    """The recurrence over a block, and how to get at the states inside it."""
    rows = consumed.k.shape[1]
    # A long block is sooner run again, up to where it is cut, than remembered state by state.
    if every_state and 1 < rows <= RECORD_WINDOW and not _one_kernel(layer):
        return _step_by_step(layer, consumed, state)

    def run(block: Consumed) -> tuple[mx.array, mx.array]:
        out, final = gated_delta_update(
            block.q,
            block.k,
            block.v,
            block.a,
            block.b,
            layer.A_log,
            layer.dt_bias,
            state,
            None,
            use_kernel=not layer.training,
        )
        return out, final

    out, final = run(consumed)
    return out, lambda m: final if m == rows else run(consumed.rows(0, m))[1]


def _step_by_step(
    layer: GatedDeltaLayer, consumed: Consumed, state: mx.array | None
) -> tuple[mx.array, StateAfter]:
    """The recurrence as a loop of operations, whose states exist anyway: keep them."""
    beta = mx.sigmoid(consumed.b)
    g = compute_g(layer.A_log, consumed.a, layer.dt_bias)
    outs, states = [], []
    for t in range(consumed.k.shape[1]):
        one = consumed.rows(t, t + 1)
        now = slice(t, t + 1)
        out, state = gated_delta_ops(one.q, one.k, one.v, g[:, now], beta[:, now], state)
        outs.append(out)
        states.append(state)
    return mx.concatenate(outs, axis=1), lambda m: states[m - 1]


def _one_kernel(layer: GatedDeltaLayer) -> bool:
    """Whether mlx-lm runs the recurrence as one kernel here, and not as a loop of operations."""
    on_metal = mx.metal.is_available() and mx.default_device() == mx.gpu
    return on_metal and not layer.training and layer.head_k_dim % 32 == 0
