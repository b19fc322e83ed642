"""Going back where the recurrence is a loop of operations: every step left a state, so pick one."""

from __future__ import annotations

from typing import final

import attrs
import mlx.core as mx
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops
from typing_extensions import override

from speculate.models.recurrence import Inputs, RecurrentLayer, Start, States


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
