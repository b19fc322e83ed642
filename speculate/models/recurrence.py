"""The recurrence of Gated DeltaNet over one block of tokens, and what a way back into it must do.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464,
equation 10. There are two ways: `every_state` and `folded_replay`.
"""

from __future__ import annotations

import attrs
import mlx.core as mx
from mlx_lm.models.gated_delta import normalize_qk
from typing_extensions import Protocol


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
