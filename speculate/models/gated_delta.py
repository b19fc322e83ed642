"""The recurrence of Gated DeltaNet over one block of tokens, and what a way back into it must do.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464,
equation 10. There are two ways: `every_state` and `folded_replay`.
"""

from __future__ import annotations

from typing import Final, Self, final

import attrs
import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops, gated_delta_update, normalize_qk
from typing_extensions import Protocol, override

from speculate.backends.group import RECORD_WINDOW
from speculate.models.output import Linear
from speculate.protocols import Deferred, DefersRollback, Entries, Recurrence


class RecurrentLayer(Protocol):
    """What the recurrence needs to know of a stock layer."""

    num_v_heads: int
    num_k_heads: int
    head_k_dim: int
    head_v_dim: int
    key_dim: int
    training: bool
    A_log: mx.array
    dt_bias: mx.array


@attrs.frozen(eq=False)
class Inputs:
    """What the recurrence reads of `T` tokens.

    Attributes:
        qkv: `(1, T, conv_dim)`, behind the convolution.
        a: `(1, T, value heads)`, the decay before its activation.
        b: `(1, T, value heads)`, the write strength before its activation.
    """

    qkv: mx.array
    a: mx.array
    b: mx.array

    @property
    def count(self) -> int:
        """Tokens."""
        return self.a.shape[1]

    def first(self, count: int) -> Inputs:
        """The first `count` tokens."""
        return Inputs(self.qkv[:, :count], self.a[:, :count], self.b[:, :count])

    def then(self, more: Inputs) -> Inputs:
        """These tokens, and others behind them."""
        return Inputs(
            mx.concatenate([self.qkv, more.qkv], axis=1),
            mx.concatenate([self.a, more.a], axis=1),
            mx.concatenate([self.b, more.b], axis=1),
        )

    def split(self, layer: RecurrentLayer) -> tuple[mx.array, mx.array, mx.array]:
        """Queries and keys `(1, T, key heads, key width)`, normalised; values by value head."""
        q, k, v = mx.split(self.qkv, [layer.key_dim, 2 * layer.key_dim], -1)
        keys = (1, self.count, layer.num_k_heads, layer.head_k_dim)
        q, k = normalize_qk(
            q.reshape(keys), k.reshape(keys), inv_scale=layer.head_k_dim**-0.5, eps=1e-6
        )
        return q, k, v.reshape(1, self.count, layer.num_v_heads, layer.head_v_dim)


@attrs.frozen(eq=False)
class Start:
    """Where a recurrence goes on from.

    Attributes:
        state: `(1, value heads, value width, key width)` float32; `None` for zeros.
        replay: Tokens of the text that `state` does not know yet.
    """

    state: mx.array | None
    replay: Inputs | None = None


class States(Protocol):
    """The states inside a block of `T` tokens, of which `m` are to stay, `0 < m < T`.

    Law: both ways on leave what `m` single steps would have left, bit for bit.
    """

    def after(self, m: int, /) -> mx.array:
        """The state after the first `m` tokens, as an array."""

    def resume(self, m: int, /) -> Start:
        """How the next block goes on after them, as cheaply as possible."""


@final
@attrs.frozen(eq=False)
class EveryState(States):
    """References to the states of a block, one a token."""

    states: list[mx.array]

    @override
    def after(self, m: int, /) -> mx.array:
        return self.states[m - 1]

    @override
    def resume(self, m: int, /) -> Start:
        return Start(self.after(m))


def step_by_step(
    layer: RecurrentLayer, inputs: Inputs, state: mx.array | None
) -> tuple[mx.array, list[mx.array]]:
    """The same operations as mlx-lm's loop, whose states it does not return.

    Returns:
        `(1, T, value heads, value width)`, and the state after each token.
    """
    q, k, v = inputs.split(layer)
    shared = layer.num_v_heads // layer.num_k_heads
    if shared > 1:
        # Once, and not at every step.
        q, k = mx.repeat(q, shared, -2), mx.repeat(k, shared, -2)
    beta = mx.sigmoid(inputs.b)
    g = compute_g(layer.A_log, inputs.a, layer.dt_bias)
    outs, states = [], []
    for t in range(inputs.count):
        at = slice(t, t + 1)
        out, state = gated_delta_ops(q[:, at], k[:, at], v[:, at], g[:, at], beta[:, at], state)
        outs.append(out)
        states.append(state)
    return mx.concatenate(outs, axis=1), states


FOLD_AT_MOST: Final = 16
"""Tokens that run again in front of a block.

What stays of several rejected blocks in a row adds up, until a block is accepted as a whole: past
this many a run of its own makes the state. Such a run is a launch, and reads and writes a whole
state. Where it costs as much as `c` rows and each rejection leaves `m` tokens, folding up to
`sqrt(2 m c)` is cheapest: 16 for two tokens and a state of 64 rows' worth.
"""


@final
@attrs.frozen(eq=False)
class FoldedReplay(States):
    """The inputs of a run, and the state that it began with.

    Attributes:
        layer: Whose recurrence it is.
        before: That state.
        inputs: All tokens of the run, folded ones first.
        folded: How many in front are not the block's own.
        kernel: Whether the run may use mlx-lm's kernel.
    """

    layer: RecurrentLayer
    before: mx.array | None
    inputs: Inputs
    folded: int
    kernel: bool

    @override
    def after(self, m: int, /) -> mx.array:
        inputs = self.inputs.first(self.folded + m)
        return all_at_once(self.layer, inputs, self.before, kernel=self.kernel)[1]

    @override
    def resume(self, m: int, /) -> Start:
        if self.folded + m > FOLD_AT_MOST:
            return Start(self.after(m))
        return Start(self.before, self.inputs.first(self.folded + m))


def all_at_once(
    layer: RecurrentLayer, inputs: Inputs, state: mx.array | None, *, kernel: bool
) -> tuple[mx.array, mx.array]:
    """Run all tokens in one call.

    Returns:
        `(1, T, value heads, value width)`, and the last state.
    """
    q, k, v = inputs.split(layer)
    out, state = gated_delta_update(
        q,
        k,
        v,
        inputs.a,
        inputs.b,
        layer.A_log,
        layer.dt_bias,
        state,
        None,
        use_kernel=kernel and not layer.training,
    )
    return out, state


class GatedNorm(Protocol):
    """A stock norm with an output gate."""

    def __call__(self, x: mx.array, gate: mx.array, /) -> mx.array: ...


class GatedDeltaLayer(RecurrentLayer, Protocol):
    """What Qwen3.5's and Qwen3-Next's layers have in common."""

    conv_dim: int
    conv_kernel_size: int
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


@final
@attrs.frozen(eq=False)
class Block:
    """The way back into a block of `T` tokens: what a layer records of it.

    Attributes:
        conv_input: `(1, taps + T, conv_dim)`: the last rows before the block, and its own.
        taps: Rows before a token that its convolution sees.
        states: The recurrent states inside the block.
    """

    conv_input: mx.array
    taps: int
    states: States

    def __call__(self, m: int) -> Entries:
        """The entries of the cache after the first `m` tokens, `0 < m < T`."""
        return mx.contiguous(self._conv_window(m)), self.states.after(m)

    def resume(self, m: int) -> tuple[mx.array, Start]:
        """How the next block goes on after them, without making those entries."""
        return self._conv_window(m), self.states.resume(m)

    def _conv_window(self, m: int) -> mx.array:
        return self.conv_input[:, m : m + self.taps]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # Nothing in here ever changes, and the layer must not be copied along with a cache.
        return self


def gated_delta(
    layer: GatedDeltaLayer,
    projected: Projected,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """Run one layer over `T` tokens and advance its cache.

    Args:
        layer: The stock layer.
        projected: Its input projections.
        cache: Its cache. One that `DefersRollback` is told the way back while it records.
        recurrence: How to run a block; `None` for what costs least on the default device.

    Returns:
        `(1, T, width)`, the layer's output before the residual.
    """
    taps, rows = layer.conv_kernel_size - 1, projected.qkv.shape[1]
    ours = cache if isinstance(cache, DefersRollback) else None
    recording = ours is not None and ours.recording()
    before, conv_window, start = _before(cache, ours)
    conv_input = _behind(conv_window, projected.qkv, taps)
    inputs = Inputs(nn.silu(layer.conv1d(conv_input)), projected.a, projected.b)
    kernel = (recurrence or cheapest(layer)) == "kernel"
    out, state, states = _run(layer, start, inputs, kernel=kernel, recording=recording)
    after = mx.contiguous(conv_input[:, rows:]), state
    if ours is None:
        cache[0], cache[1] = after
    else:
        ours.replace(after)
    cache.advance(rows)
    if ours is not None and recording:
        ours.record_rollback(rows, Block(conv_input, taps, states), before)
    gated = layer.norm(out, projected.z)
    return layer.out_proj(gated.reshape(1, rows, -1))


def cheapest(layer: RecurrentLayer) -> Recurrence:
    """What costs least on the default device: mlx-lm's kernel, where there is one."""
    on_metal = mx.metal.is_available() and mx.default_device() == mx.gpu
    return "kernel" if on_metal and not layer.training and layer.head_k_dim % 32 == 0 else "ops"


def _before(
    cache: StateSlots, ours: DefersRollback | None
) -> tuple[Entries | Deferred, mx.array | None, Start]:
    """What the cache holds: all of it, the conv window, and where the recurrence goes on from."""
    noted = None if ours is None else ours.deferred()
    if noted is not None and isinstance(noted.restore, Block):
        return noted, *noted.restore.resume(noted.num_tokens)
    entries = cache[0], cache[1]
    return entries, entries[0], Start(entries[1])


def _behind(conv_window: mx.array | None, qkv: mx.array, taps: int) -> mx.array:
    """The block's conv input: the last rows of the text so far, then the new ones."""
    if conv_window is None:
        conv_window = mx.zeros((1, taps, qkv.shape[2]), dtype=qkv.dtype)
    return mx.concatenate([conv_window, qkv], axis=1)


def _run(
    layer: GatedDeltaLayer, start: Start, block: Inputs, *, kernel: bool, recording: bool
) -> tuple[mx.array, mx.array, States]:
    """The recurrence over a block: its output, the state after it, and those inside it."""
    inputs = block if start.replay is None else start.replay.then(block)
    folded = inputs.count - block.count
    # A long block is sooner run again, up to where it is cut, than remembered state by state.
    if recording and not kernel and 1 < inputs.count <= RECORD_WINDOW:
        out, every = step_by_step(layer, inputs, start.state)
        return out[:, folded:], every[-1], EveryState(every[folded:])
    out, last = all_at_once(layer, inputs, start.state, kernel=kernel)
    return out[:, folded:], last, FoldedReplay(layer, start.state, inputs, folded, kernel)
