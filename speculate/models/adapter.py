"""The base of all adapters, and the adapter of families without special layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, cast, final, get_args

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import create_attention_mask, gather_last_axis
from mlx_lm.models.cache import make_prompt_cache
from typing_extensions import override

from speculate._mx import fingerprint
from speculate.backends.adopt import adopt
from speculate.backends.group import group_of
from speculate.errors import OptionError, UnsupportedModelError
from speculate.models.stock import DeltaT, DenseTrunk, HybridModel, Linear, StateSlots, TextModel
from speculate.protocols import Forward, MTPHead, Recurrence, Rollbackable, StockModel
from speculate.validation import validated_choice

SINKS: Final = 4
"""First rows of the sequence that `max_kv_size` never drops, as in mlx-lm."""


class StockAdapter(ABC):
    """Drives a model of mlx-lm without changing it. Families implement `forward_stock`.

    Args:
        stock: The model, as mlx-lm made it.
        head: A multi-token-prediction head that fits it.
        eos_token_ids: Ids that end a sequence.
        vocabulary: Token strings and their ids, to compare with a draft model's.
        recurrence: How recurrent layers run a block and are rolled back; `None` for the cheapest
            way on the default device. Families without recurrent layers ignore it.
    """

    def __init__(
        self,
        stock: StockModel,
        *,
        head: MTPHead | None = None,
        eos_token_ids: Iterable[int] = (),
        vocabulary: Mapping[str, int] | None = None,
        recurrence: Recurrence | None = None,
    ) -> None:
        self._stock = stock
        self._head = head
        self._eos = frozenset(eos_token_ids)
        self._vocabulary = vocabulary
        validated_choice("recurrence", recurrence, (*get_args(Recurrence), None))
        self._recurrence = recurrence
        self._cache_count: int | None = None

    @abstractmethod
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        """Run the stock modules over `tokens`, with the stock model's result bit for bit.

        The hook for adapter authors. `forward` calls it with checked arguments, undoes it if it
        raises, and puts tokens to replay first.

        Args:
            tokens: `(1, T)` ids.
            cache: One entry a layer, advanced by `T` tokens.

        Returns:
            Logits `(1, T, vocabulary)`, and the trunk's output after its final norm.
        """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""

    @property
    def stock(self) -> StockModel:
        """The model of mlx-lm, unchanged."""
        return self._stock

    @property
    def fingerprint(self) -> str:
        """A hash of the shapes and formats of the weights; see `SupportsFingerprint`."""
        return fingerprint(self._stock)

    @property
    def layers(self) -> Sequence[object]:
        """The decoder layers, first to last."""
        return self._stock.layers

    @property
    def head(self) -> MTPHead | None:
        return self._head

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._eos

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return self._vocabulary

    @property
    def recurrence(self) -> Recurrence | None:
        """How recurrent layers run a block; `None` if it was not chosen."""
        return self._recurrence

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        """Return a fresh cache, one entry a layer; see `SpeculativeModel.make_cache`.

        Raises:
            OptionError: `max_kv_size` is not above 4.
        """
        if max_kv_size is not None and max_kv_size <= SINKS:
            raise OptionError(f"max_kv_size must be over {SINKS}, got {max_kv_size}")
        return adopt(make_prompt_cache(cast(Module, self._stock), max_kv_size), position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        """Move a stock cache's content into rewindable caches; see `SpeculativeModel.adopt`."""
        return adopt(cache)

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        """Feed `tokens` to all layers; to none if it raises. See `SpeculativeModel.forward`.

        Tokens to replay are fed first, and their rows are left out of the result. `cache` is from
        `make_cache`, or mlx-lm's own.

        Raises:
            OptionError: `tokens` is not one sequence of at least one token, `cache` has another
                model's number of caches, or taps were requested.
        """
        if taps:
            raise OptionError(f"{type(self).__name__} cannot return the outputs of layers (taps)")
        if not isinstance(tokens, mx.array):
            raise OptionError(f"forward takes an mx.array (1, T), got a {type(tokens).__name__}")
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] < 1:
            raise OptionError(f"forward takes tokens of shape (1, T), T >= 1, got {tokens.shape}")
        if self._cache_count is None:
            self._cache_count = len(self.make_cache())
        if len(cache) != self._cache_count:
            raise OptionError(
                f"forward got {len(cache)} caches, and this model has {self._cache_count}: they "
                "are another model's, or two models' in one list"
            )
        group = group_of(cache)
        if group is None:
            return self.forward_stock(tokens, cache)
        if group.replay_is_long():
            # As a block of its own, or every rejection would lengthen the next one.
            with group.replaying() as replay:
                self.forward_stock(replay, cache)
        with group.block(tokens) as fed:
            out = self.forward_stock(fed, cache)
        return out.after(fed.shape[1] - tokens.shape[1])

    def __call__(self, inputs: mx.array, cache: Sequence[object] | None = None) -> mx.array:
        """Return logits `(1, T, vocabulary)`, so that loops written for mlx-lm can call this."""
        return self.forward(inputs, self.make_cache() if cache is None else cache).logits


def project(text: TextModel, hidden: mx.array) -> mx.array:
    """Return the logits `(1, T, vocabulary)` of post-norm hidden states `(1, T, width)`.

    They come from the tied embedding if there is no `lm_head`, whatever the config says.
    """
    # A module of mlx is a dict of its parameters and submodules.
    head = cast(Mapping[str, Linear], text).get("lm_head")
    if head is None:
        return text.model.embed_tokens.as_linear(hidden)
    group: mx.distributed.Group | None = getattr(text, "sharding_group", None)
    # Of a sharded matrix, each process holds a part of the rows.
    return head(hidden) if group is None else gather_last_axis(head(hidden), group)


class TextAdapter(StockAdapter):
    """Base of adapters of models whose logits are `project` of the trunk's output."""

    @property
    def text(self) -> TextModel:
        """The stock module that holds the trunk."""
        return cast(TextModel, self._stock)

    @abstractmethod
    def run_trunk(self, tokens: mx.array, cache: Sequence[object], /) -> mx.array:
        """Return the trunk's output `(1, T, width)` after its final norm; see `forward_stock`."""

    @property
    @override
    def vocab_size(self) -> int:
        return self.text.model.embed_tokens.weight.shape[0]

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        hidden = self.run_trunk(tokens, cache)
        return Forward(project(self.text, hidden), hidden)


@final
class DenseAdapter(TextAdapter):
    """Drives llama, Qwen2, Qwen3, gpt-oss and LFM2.

    Full attention, sliding windows and recurrent states all work, the latter rolled back by whole
    blocks. A family whose stock forward does more than this one, as scaling its logits, needs an
    adapter of its own: this one is refused at construction for such a family.
    """

    @override
    def run_trunk(self, tokens: mx.array, cache: Sequence[object], /) -> mx.array:
        return cast(DenseTrunk, self.text.model)(tokens, cache)


class HybridAdapter(TextAdapter, Generic[DeltaT]):
    """The base for trunks that mix Gated DeltaNet layers and full attention.

    Calls the layers itself, over their stock submodules, and `run_delta` for recurrent ones.
    """

    @property
    @override
    @abstractmethod
    def text(self) -> HybridModel[DeltaT]: ...

    @abstractmethod
    def run_delta(self, layer: DeltaT, x: mx.array, cache: StateSlots, /) -> mx.array:
        """Run one recurrent layer over `x` `(1, T, width)`; the result has the same shape."""

    @override
    def run_trunk(self, tokens: mx.array, cache: Sequence[object], /) -> mx.array:
        trunk = self.text.model
        if trunk.pipeline_size > 1:
            raise UnsupportedModelError(
                f"the model is split into {trunk.pipeline_size} pipeline stages, which is not "
                "supported; load it whole, or shard it within its layers"
            )
        h = trunk.embed_tokens(tokens)
        mask = create_attention_mask(h, cache[trunk.fa_idx])
        for layer, layer_cache in zip(trunk.layers, cache, strict=True):
            x = layer.input_layernorm(h)
            if layer.is_linear:
                mixed = self.run_delta(layer.linear_attn, x, cast(StateSlots, layer_cache))
            else:
                mixed = layer.self_attn(x, mask, layer_cache)
            h = h + mixed
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        return trunk.norm(h)
