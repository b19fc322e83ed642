"""A Gated DeltaNet layer over one block of tokens, and how to roll back into the block.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464,
equation 10. A rejected draft is rolled back in one of two ways: `KeptStates` holds the state after
every token of the block, `FusedReplay` runs the accepted tokens again with the next block.
"""

from __future__ import annotations

from typing import Final, Self, final

import attrs
import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops, gated_delta_update, normalize_qk

from speculate.backends.group import RECORD_WINDOW
from speculate.models.stock import GatedDeltaLayer, StateSlots
from speculate.protocols import DeferredState, Entries, Recurrence, SupportsDeferredRollback

MAX_FUSED_TOKENS: Final = 16
"""Most tokens that are replayed at the start of a block.

Accepted tokens add up while blocks are rejected one after another. Above this many the state is
computed by a launch of its own. If that costs as much as `c` rows and each rejection leaves `m`
tokens, fusing up to `sqrt(2 m c)` is cheapest: 16 for two tokens and a state as large as 64 rows.
"""


@attrs.frozen(eq=False)
class Inputs:
    """The inputs of the recurrence for `T` tokens.

    Attributes:
        qkv: `(1, T, width)`: queries, keys and values, before or after the convolution.
        a: `(1, T, value heads)`, the decay before its activation.
        b: `(1, T, value heads)`, the write strength before its activation.
    """

    qkv: mx.array
    a: mx.array
    b: mx.array

    @property
    def count(self) -> int:
        """`T`."""
        return self.a.shape[1]

    def first(self, count: int) -> Inputs:
        return Inputs(self.qkv[:, :count], self.a[:, :count], self.b[:, :count])

    def then(self, more: Inputs) -> Inputs:
        """Return these inputs followed by `more`."""
        return Inputs(
            mx.concatenate([self.qkv, more.qkv], axis=1),
            mx.concatenate([self.a, more.a], axis=1),
            mx.concatenate([self.b, more.b], axis=1),
        )

    def split(self, layer: GatedDeltaLayer) -> tuple[mx.array, mx.array, mx.array]:
        """Return normalised queries and keys, and values, `(1, T, heads, width)` each."""
        q, k, v = mx.split(self.qkv, [layer.key_dim, 2 * layer.key_dim], -1)
        keys = (1, self.count, layer.num_k_heads, layer.head_k_dim)
        q, k = normalize_qk(
            q.reshape(keys), k.reshape(keys), inv_scale=layer.head_k_dim**-0.5, eps=1e-6
        )
        return q, k, v.reshape(1, self.count, layer.num_v_heads, layer.head_v_dim)


@attrs.frozen(eq=False)
class ResumePoint:
    """Where a recurrence resumes.

    Attributes:
        state: `(1, value heads, value width, key width)` float32; `None` for zeros.
        replay: Inputs of tokens of the sequence that `state` has not consumed yet.
    """

    state: mx.array | None
    replay: Inputs | None = None


@final
@attrs.frozen(eq=False)
class KeptStates:
    """The states of a block by reference, one a token."""

    states: list[mx.array]

    def after(self, m: int, /) -> mx.array:
        return self.states[m - 1]

    def resume(self, m: int, /) -> ResumePoint:
        return ResumePoint(self.after(m))


def run_steps(
    layer: GatedDeltaLayer, inputs: Inputs, state: mx.array | None
) -> tuple[mx.array, list[mx.array]]:
    """Run the tokens one by one, with the operations of mlx-lm's loop.

    Returns the output `(1, T, value heads, value width)`, and the state after each token.
    """
    q, k, v = inputs.split(layer)
    shared = layer.num_v_heads // layer.num_k_heads
    if shared > 1:
        # Once, rather than at every step.
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


@final
@attrs.frozen(eq=False)
class FusedReplay:
    """The inputs of a run and its initial state, so that its first tokens can be run again.

    The first `fused` of the inputs are tokens of earlier blocks.
    """

    layer: GatedDeltaLayer
    before: mx.array | None
    inputs: Inputs
    fused: int
    kernel: bool

    def after(self, m: int, /) -> mx.array:
        inputs = self.inputs.first(self.fused + m)
        return run_fused(self.layer, inputs, self.before, kernel=self.kernel)[1]

    def resume(self, m: int, /) -> ResumePoint:
        if self.fused + m > MAX_FUSED_TOKENS:
            return ResumePoint(self.after(m))
        return ResumePoint(self.before, self.inputs.first(self.fused + m))


BlockStates = KeptStates | FusedReplay
"""The recurrent states inside a block of `T` tokens, of which `m` are kept, `0 < m < T`.

`after(m)` is the state after the first `m`; `resume(m)` says where the next block resumes, as
cheaply as possible. Both leave what `m` single steps would have left, bit for bit.
"""


def run_fused(
    layer: GatedDeltaLayer, inputs: Inputs, state: mx.array | None, *, kernel: bool
) -> tuple[mx.array, mx.array]:
    """Run all tokens in one call of mlx-lm's recurrence, by its kernel if it may.

    Returns the output `(1, T, value heads, value width)`, and the last state.
    """
    gates = inputs.a, inputs.b, layer.A_log, layer.dt_bias
    use_kernel = kernel and not layer.training
    return gated_delta_update(*inputs.split(layer), *gates, state, use_kernel=use_kernel)


@final
@attrs.frozen(eq=False)
class BlockRecord:
    """What a layer records of a block of `T` tokens, to roll back into it.

    Attributes:
        conv_input: `(1, taps + T, width)`: the last rows before the block, and its own.
        taps: Rows before a token that its convolution reads.
        states: The recurrent states inside the block.
    """

    conv_input: mx.array
    taps: int
    states: BlockStates

    def __call__(self, m: int) -> Entries:
        """Return the cache's entries after the first `m` tokens, `0 < m < T`."""
        return mx.contiguous(self.conv_input[:, m : m + self.taps]), self.states.after(m)

    def resume(self, m: int) -> tuple[mx.array, ResumePoint]:
        """Return the conv window and where the recurrence resumes, without computing entries."""
        return self.conv_input[:, m : m + self.taps], self.states.resume(m)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # A record is immutable, and the layer must not be copied along with a cache.
        return self


def gated_delta(
    layer: GatedDeltaLayer,
    projected: Inputs,
    gate: mx.array,
    cache: StateSlots,
    recurrence: Recurrence | None = None,
) -> mx.array:
    """Run one layer over `T` tokens and advance its cache.

    Args:
        layer: The stock layer.
        projected: The outputs of its input projections, before the convolution.
        gate: The output gate, `(1, T, value heads, value width)`.
        cache: Its cache. While one that supports deferred rollback records, the block is recorded
            in it.
        recurrence: How to run a block; `None` for the cheapest way on the default device.

    Returns:
        `(1, T, width)`, the layer's output before the residual.
    """
    taps, rows = layer.conv_kernel_size - 1, projected.count
    ours = cache if isinstance(cache, SupportsDeferredRollback) else None
    recording = ours is not None and ours.recording()
    before, window, start = _before(cache, ours)
    if window is None:
        window = mx.zeros((1, taps, projected.qkv.shape[2]), dtype=projected.qkv.dtype)
    conv_input = mx.concatenate([window, projected.qkv], axis=1)
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
        ours.record_rollback(rows, BlockRecord(conv_input, taps, states), before)
    return layer.out_proj(layer.norm(out, gate).reshape(1, rows, -1))


def cheapest(layer: GatedDeltaLayer) -> Recurrence:
    """Return the cheapest recurrence on the default device: the kernel, where there is one."""
    on_metal = mx.metal.is_available() and mx.default_device() == mx.gpu
    return "kernel" if on_metal and not layer.training and layer.head_k_dim % 32 == 0 else "ops"


def _before(
    cache: StateSlots, ours: SupportsDeferredRollback | None
) -> tuple[Entries | DeferredState, mx.array | None, ResumePoint]:
    """Return the cache's content, its conv window, and where the recurrence resumes."""
    deferred = None if ours is None else ours.deferred()
    if deferred is not None and isinstance(deferred.restore, BlockRecord):
        return deferred, *deferred.restore.resume(deferred.num_tokens)
    entries = cache[0], cache[1]
    return entries, entries[0], ResumePoint(entries[1])


def _run(
    layer: GatedDeltaLayer, start: ResumePoint, block: Inputs, *, kernel: bool, recording: bool
) -> tuple[mx.array, mx.array, BlockStates]:
    """Return the block's output, the state after it, and the states inside it."""
    inputs = block if start.replay is None else start.replay.then(block)
    fused = inputs.count - block.count
    # For a long block a replay is cheaper than memory for every state.
    if recording and not kernel and 1 < inputs.count <= RECORD_WINDOW:
        out, every = run_steps(layer, inputs, start.state)
        return out[:, fused:], every[-1], KeptStates(every[fused:])
    out, last = run_fused(layer, inputs, start.state, kernel=kernel)
    return out[:, fused:], last, FusedReplay(layer, start.state, inputs, fused, kernel)
