"""Going back where the recurrence is one kernel: what stays runs again with the next block.

The kernel leaves the last state alone. To go back is only to note how many tokens stay; the next
block puts their recorded inputs in front of its own and begins where the block before began. So
a rejection costs no launch of its own, no copy of a state and no weights, but a few more rows in
a launch that happens anyway.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_update
from typing_extensions import override

from speculate.models.recurrence import Inputs, RecurrentLayer, Start, States

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
