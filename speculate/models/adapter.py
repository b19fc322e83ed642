"""What all adapters share: one forward is all or nothing, and owed tokens go first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast, final, get_args

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache
from typing_extensions import Protocol, override

from speculate.backends.adopt import adopt
from speculate.backends.group import group_of
from speculate.errors import OptionError, UnsupportedModelError
from speculate.models.fingerprint import fingerprint
from speculate.models.output import Embedding, Linear, project
from speculate.protocols import Forward, MTPHead, Recurrence, Rollbackable, StockModel
from speculate.validation import validated_choice

SINKS: Final = 4
"""Rows that `max_kv_size` never drops, as in mlx-lm."""


class StockAdapter(ABC):
    """Drives a model of mlx-lm without changing it. Families say how in `_walk`.

    Args:
        stock: The model, as mlx-lm made it.
        head: A multi-token-prediction head that fits it.
        eos_token_ids: Ids that end a text.
        vocabulary: Token strings and their ids, to compare with a draft model's.
        recurrence: How recurrent layers run a block and are taken back; `None` for what
            costs least on the default device. Families without such layers have no use for it.
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
    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        """One forward over `tokens` `(1, T)`, bit-equal to the stock model's."""

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
        """See `Fingerprinted`."""
        return fingerprint(self._stock)

    @property
    def layers(self) -> Sequence[object]:
        """The decoder layers, first to last."""
        return self._stock.layers

    @property
    def head(self) -> MTPHead | None:
        """The multi-token-prediction head, if one is attached."""
        return self._head

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        return self._eos

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        """Token strings and their ids, where a tokenizer is known."""
        return self._vocabulary

    @property
    def recurrence(self) -> Recurrence | None:
        """How recurrent layers run a block, where that was chosen."""
        return self._recurrence

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        """A fresh cache, one entry a layer; see `SpeculativeModel.make_cache`."""
        if max_kv_size is not None and max_kv_size <= SINKS:
            raise OptionError(f"max_kv_size must be over {SINKS}, got {max_kv_size}")
        return adopt(make_prompt_cache(cast(Module, self._stock), max_kv_size), position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        """Move a stock cache's content; see `SpeculativeModel.adopt`."""
        return adopt(cache)

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        """Feed `tokens` `(1, T)`.

        If it raises, no layer has consumed anything of them.

        Args:
            tokens: `(1, T)` ids.
            cache: From `make_cache`, or mlx-lm's own.

        Raises:
            OptionError: `tokens` is not one sequence of at least one token, or `cache` has
                another model's number of caches.
        """
        if not isinstance(tokens, mx.array):
            raise OptionError(f"forward takes an mx.array (1, T), got a {type(tokens).__name__}")
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] < 1:
            raise OptionError(f"forward takes tokens of shape (1, T), T >= 1, got {tokens.shape}")
        self._check_count(cache)
        group = group_of(cache)
        if group is None:
            return self._walk(tokens, cache)
        if group.replay_is_long():
            # Paid off as a block of its own, or every rejection would lengthen the next one.
            with group.replaying() as owed:
                self._walk(owed, cache)
        with group.block(tokens) as fed:
            out = self._walk(fed, cache)
        extra = fed.shape[1] - tokens.shape[1]
        return Forward(out.logits[:, extra:], out.hidden[:, extra:]) if extra else out

    def _check_count(self, cache: Sequence[object]) -> None:
        if self._cache_count is None:
            self._cache_count = len(self.make_cache())
        if len(cache) != self._cache_count:
            raise OptionError(
                f"forward got {len(cache)} caches, and this model has {self._cache_count}: they "
                "are another model's, or two models' in one list"
            )

    def __call__(self, inputs: mx.array, cache: Sequence[object] | None = None) -> mx.array:
        """Logits `(1, T, vocabulary)`, so that loops written for mlx-lm can drive this."""
        return self.forward(inputs, self.make_cache() if cache is None else cache).logits


def refuse_pipeline(stages: int) -> None:
    """Raise where a model is split over processes layer by layer.

    Raises:
        UnsupportedModelError: `stages` is more than 1.
    """
    if stages > 1:
        raise UnsupportedModelError(
            f"the model is split into {stages} pipeline stages, which is not supported; "
            "load it whole, or shard it within its layers"
        )


class Trunk(Protocol):
    """The part of a stock model that ends with the final norm."""

    embed_tokens: Embedding

    def __call__(self, inputs: mx.array, cache: Sequence[object], /) -> mx.array: ...


class TrunkAndHead(Protocol):
    """A stock model whose logits are its trunk's output times one matrix."""

    model: Trunk
    lm_head: Linear


@final
class DenseAdapter(StockAdapter):
    """Drives llama, Qwen2, Qwen3, gpt-oss and LFM2.

    What each layer's cache is like does not matter here: full attention, sliding windows
    and recurrent states all work, the latter by whole blocks. A family whose stock forward
    does more than this one, as scaling its logits, needs an adapter of its own: named for
    such a family, this one is refused when it is made.
    """

    @property
    def _model(self) -> TrunkAndHead:
        return cast(TrunkAndHead, self._stock)

    @property
    @override
    def vocab_size(self) -> int:
        return self._model.model.embed_tokens.weight.shape[0]

    @override
    def _walk(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        hidden = self._model.model(tokens, cache)
        return Forward(project(self._stock, self._model.model.embed_tokens, hidden), hidden)
