"""What a head borrows of its trunk: the embedding, the output matrix, the layers' classes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast, final

import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import gather_last_axis
from typing_extensions import Protocol

from speculate.errors import UnsupportedModelError
from speculate.models._mtp_module import DecoderLayer
from speculate.models.output import Embedding, project
from speculate.protocols import StockModel


class LayerArgs(Protocol):
    """A family's arguments, as far as they shape a decoder layer."""

    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float
    num_experts: int
    full_attention_interval: int
    decoder_sparse_step: int
    mlp_only_layers: list[int]


class Norm(Protocol):
    """A stock norm."""

    weight: mx.array


class Body(Protocol):
    """The stock module under the output matrix."""

    embed_tokens: Embedding
    norm: Norm


class Text(Protocol):
    """The stock module that holds the output matrix, if there is one of its own."""

    args: LayerArgs
    model: Body


class ShardedText(Protocol):
    """One whose output matrix may be split over processes."""

    sharding_group: mx.distributed.Group | None


MakeLayer = Callable[[LayerArgs, int], DecoderLayer]
"""A stock layer class: arguments, and the layer's index, which decides its attention."""


@final
class Trunk:
    """A stock model of a family that has heads. Holds no array of its own.

    Everything is looked up when it is used: whatever matrix the target multiplies with at
    that moment, tied or not, in whatever packing, the head does too.

    Raises:
        UnsupportedModelError: No head is known for this family.
    """

    def __init__(self, stock: StockModel) -> None:
        known: object = stock.language_model if isinstance(stock, qwen3_5.Model) else stock
        self._sharded: ShardedText | None = None
        if isinstance(known, qwen3_5.TextModel):
            self._make_layer = cast(MakeLayer, qwen3_5.DecoderLayer)
            self._sharded = cast(ShardedText, known)
        elif isinstance(known, qwen3_next.Model):
            self._make_layer = cast(MakeLayer, qwen3_next.Qwen3NextDecoderLayer)
        else:
            raise UnsupportedModelError(
                f"no multi-token-prediction head is known for {type(stock).__module__}; there "
                "are heads for qwen3_5, qwen3_5_moe and qwen3_next"
            )
        self._text = cast(Text, known)

    @property
    def args(self) -> LayerArgs:
        """The family's arguments."""
        return self._text.args

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings `(1, T, width)` of tokens `(1, T)`."""
        return self._text.model.embed_tokens(tokens)

    def project(self, hidden: mx.array) -> mx.array:
        """Logits `(1, T, vocabulary)` of post-norm hidden states `(1, T, width)`."""
        logits = project(self._text, self._text.model.embed_tokens, hidden)
        group = self._sharded.sharding_group if self._sharded else None
        if group is None or "lm_head" not in cast(dict[str, object], self._text):
            return logits
        # Each process holds some rows of the matrix.
        return gather_last_axis(logits, group)

    def dtype(self) -> mx.Dtype:
        """What hidden states come in."""
        return self._text.model.norm.weight.dtype

    def layer(self, experts: bool, intermediate: int | None) -> DecoderLayer:
        """A decoder layer as the trunk's, with full attention and no weights worth anything.

        Args:
            experts: Whether its MLP is a mixture of experts.
            intermediate: Width of a dense MLP, where the trunk has none to go by.
        """
        args = copy.copy(self.args)
        args.full_attention_interval = 1
        args.decoder_sparse_step, args.mlp_only_layers = 1, []
        if not experts:
            args.num_experts = 0
            if self.args.num_experts and intermediate:
                args.intermediate_size = intermediate
        return self._make_layer(args, 0)
