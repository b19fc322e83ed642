"""One Gated DeltaNet layer, driven over its own submodules so that it can be taken back.

Same operations in the same order as mlx-lm's layers, so that the result is bit-equal; in
addition it records how to get back, in one of the two ways of `Recurrence`.
"""

from __future__ import annotations

from typing import Self, final

import attrs
import mlx.core as mx
from mlx import nn
from typing_extensions import Protocol

from speculate.backends.group import RECORD_WINDOW
from speculate.models.every_state import EveryState, step_by_step
from speculate.models.folded_replay import FoldedReplay, all_at_once
from speculate.models.output import Linear
from speculate.models.recurrence import Inputs, RecurrentLayer, Start, States
from speculate.protocols import Deferred, DefersRollback, Entries, Recurrence


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
