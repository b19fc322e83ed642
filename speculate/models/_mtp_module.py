"""The modules of a head: its own weights, in mlx-lm's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import create_attention_mask
from typing_extensions import Protocol


class DecoderLayer(Protocol):
    """A stock decoder layer with full attention."""

    def __call__(self, x: mx.array, /, mask: mx.array | str | None, cache: object) -> mx.array: ...


class HeadModule(Protocol):
    """A head's own modules."""

    @property
    def layers(self) -> Sequence[object]:
        """Its decoder layers."""

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object], /
    ) -> tuple[mx.array, mx.array]:
        """See `MTPModule`."""


@final
class MTPModule(Module):
    """`fc` over two normed inputs, decoder layers, a final norm.

    Its parameters are called as on disk, without the prefix.

    Args:
        width: Of the trunk.
        eps: Of all norms.
        layers: Stock decoder layers.
    """

    def __init__(self, width: int, eps: float, layers: Sequence[DecoderLayer]) -> None:
        Module.__init__(self)
        self.pre_fc_norm_embedding = RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(width, eps=eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.layers = list(layers)
        self.norm = RMSNorm(width, eps=eps)

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object]
    ) -> tuple[mx.array, mx.array]:
        """One pass over `T` rows.

        Args:
            embedded: `(1, T, width)`, the tokens.
            hidden: `(1, T, width)`, of the tokens one place before.
            cache: One entry a layer; advanced by `T` rows.

        Returns:
            The last layer's output before and after the final norm, `(1, T, width)` each.
        """
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x: mx.array = self.fc(mx.concatenate(pair, axis=-1))
        mask: mx.array | str | None = create_attention_mask(x, cache[0])
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, mask=mask, cache=layer_cache)
        return x, cast(mx.array, self.norm(x))
