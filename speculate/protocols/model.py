"""The contracts of a model and of its multi-token-prediction head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.errors import SpeculateError
from speculate.protocols.cache import Rollbackable

Recurrence = Literal["ops", "kernel"]
"""How a recurrent layer runs a block, which determines how the block is rolled back.

`"ops"` runs step by step, as a loop of operations; every intermediate state exists and is kept
by reference. `"kernel"` runs all rows at once; the accepted rows are replayed before the rows of
the next block.
"""


@attrs.frozen(eq=False)
class Forward:
    """One forward pass over `T` tokens.

    Attributes:
        logits: `(1, T, vocabulary)`, unnormalised, in the model's dtype.
        taps: `(1, T, len(taps) * width)`, the outputs after the requested layers, side by side;
            `None` if none were requested.
        model: Name of the model, for errors.
    """

    logits: mx.array
    _hidden: mx.array | None = None
    taps: mx.array | None = None
    model: str = "this model"

    @property
    def hidden(self) -> mx.array:
        """`(1, T, width)`, the trunk's output after its final norm, in the model's dtype.

        Raises:
            SpeculateError: The model does not return it.
        """
        return required(self._hidden, self.model, "hidden states")

    @property
    def has_hidden(self) -> bool:
        """Whether the model returns `hidden`."""
        return self._hidden is not None

    def after(self, rows: int) -> Forward:
        """Return the output without its first `rows` rows."""
        if not rows:
            return self
        hidden = None if self._hidden is None else self._hidden[:, rows:]
        taps = None if self.taps is None else self.taps[:, rows:]
        return Forward(self.logits[:, rows:], hidden, taps, self.model)


def required(array: mx.array | None, model: str, what: str) -> mx.array:
    """Return an output of a forward, or raise `SpeculateError` if it is `None`."""
    if array is None:
        raise SpeculateError(
            f"{model} returns no {what}, which a proposer that reads Commit.{what.split()[0]} "
            "needs: draft with one that does not, such as DraftModel or PromptLookup"
        )
    return array


class StockModel(Protocol):
    """The parts of an mlx-lm language model that this package uses."""

    def __call__(self, inputs: mx.array, /, cache: list[object] | None = None) -> mx.array:
        """Logits `(1, T, vocabulary)` for tokens `(1, T)`; advances `cache`."""

    @property
    def layers(self) -> Sequence[object]:
        """The decoder layers, first to last."""


class MTPHead(Protocol):
    """A head that predicts the token after the next one.

    Row `i` of its cache pairs the trunk's hidden state of token `i` with token `i + 1`.

    Contract: one `step` over `T` rows equals `T` steps over one row each.
    """

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        """A fresh cache whose first row belongs to sequence position `position`."""

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        """One forward of the head: a batch of committed tokens, or one step of a chain.

        Args:
            hidden: `(1, T, width)`, the trunk's post-norm output of the tokens one position
                before `tokens`; in a chain, the head's own `hidden` of the previous step.
            tokens: `(1, T)` ids.
            cache: From `make_cache`; advanced by `T` rows.

        Returns:
            Logits of the tokens one position after `tokens`, and the head's post-norm output.
        """


@runtime_checkable
class SpeculativeModel(Protocol):
    """A causal language model whose caches can roll back.

    Contract: `forward` returns what the stock model returns, bit for bit on the CPU backend.
    Contract: one block of `T` tokens equals `T` single steps, up to floating point.
    """

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence; empty if the model was loaded without a tokenizer."""

    @property
    def head(self) -> MTPHead | None:
        """The multi-token-prediction head, if one is attached."""

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        """Token strings and their ids; `None` if no tokenizer is known."""

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        """A fresh, empty cache: one entry per layer, all in one group.

        Args:
            max_kv_size: Rows to keep per layer, always including the first four; for models
                that do not choose their own caches. `None` keeps all.
            position: Sequence position of the first token to be fed, for a cache that starts
                late.
        """

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        """Move the content of mlx-lm caches into caches that can roll back.

        Raises:
            CannotRewindError: No backend can rewind the cache of a layer. Nothing was moved.
            SpeculateError: Two layers share one cache. Nothing was moved.
        """

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        """Feed `tokens`, and advance `cache` by them.

        Args:
            tokens: `(B, T)` ids. `B` is 1: batches are refused.
            cache: One entry per layer.
            taps: Indices of layers whose outputs to return. No model supports them yet.
        """
