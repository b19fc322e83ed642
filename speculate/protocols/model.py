"""What a model and its multi-token-prediction head must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.cache import Rollbackable

Recurrence = Literal["ops", "kernel"]
"""How a recurrent layer runs a block, and with it how the block is taken back.

`"ops"`: step by step, as a loop of operations. Every state exists anyway, and is kept by
reference. `"kernel"`: all rows at once. The rows that stay run again in front of the next
block's own.
"""


@attrs.frozen(eq=False)
class Forward:
    """One forward pass over `T` tokens.

    Attributes:
        logits: `(1, T, vocabulary)`, unnormalised, in the model's dtype.
        hidden: `(1, T, width)`, the trunk's output after its final norm.
    """

    logits: mx.array
    hidden: mx.array


class StockModel(Protocol):
    """A language model of mlx-lm, as far as this package needs to know it."""

    def __call__(self, inputs: mx.array, /, cache: list[object] | None = None) -> mx.array:
        """Logits `(1, T, vocabulary)` for tokens `(1, T)`; advances `cache`."""

    @property
    def layers(self) -> Sequence[object]:
        """The decoder layers, first to last."""


class MTPHead(Protocol):
    """A head that guesses the token after the next one.

    Row `i` of its cache pairs the trunk's hidden state of token `i` with token `i + 1`.

    Law: one `step` over `T` rows equals `T` steps over one row each.
    """

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        """A fresh cache whose first row stands for text position `position`."""

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        """One pass of the head: a batched catch-up, or one step of a chain.

        Args:
            hidden: `(1, T, width)`, the trunk's post-norm output of the tokens one place
                before `tokens`; in a chain, the head's own `hidden` of the step before.
            tokens: `(1, T)` ids.
            cache: From `make_cache`; advanced by `T` rows.

        Returns:
            Logits of the tokens one place after `tokens`, and the head's post-norm output.
        """


@runtime_checkable
class SpeculativeModel(Protocol):
    """A causal language model whose caches can take tokens back.

    Law: `forward` gives what the stock model gives, bit for bit on the CPU backend.
    Law: one block of `T` tokens equals `T` single steps, up to floating point.
    """

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a text; empty where the model was not loaded with a tokenizer."""

    @property
    def head(self) -> MTPHead | None:
        """The multi-token-prediction head, if one is attached."""

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        """Token strings and their ids; `None` where no tokenizer is known."""

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        """A fresh, empty cache, one entry a layer, all of one group.

        Args:
            position: Text position of the first token to be fed, for a cache that starts
                late.
            max_kv_size: Rows to keep a layer (the first four always), for models that do
                not choose their caches themselves.
        """

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        """Move the content of mlx-lm caches into caches that can take tokens back.

        Raises:
            CannotRewindError: A layer's cache is of a kind that nothing here can rewind.
                Nothing was moved.
            SpeculateError: One cache stands for two layers. Nothing was moved.
        """

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        """Feed `tokens` `(1, T)`, `T >= 1`, and advance `cache` by them."""


@runtime_checkable
class Fingerprinted(Protocol):
    """A model, a head or a proposer whose costs may be remembered under a name."""

    @property
    def fingerprint(self) -> str:
        """The same in every process for weights of the same shapes and formats."""
