"""Targets whose distribution is a table, and a head and a proposer that draft for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast, final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from speculate import SpeculativeModel
from speculate.backends.adopt import adopt
from speculate.backends.group import group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.protocols import Commit, Draft, DraftSampler, Forward, MTPHead, Rollbackable
from tests.support.exact_distributions import Floats

VOCAB: Final = 8


def table(seed: int, vocab: int = VOCAB, spread: float = 1.5) -> Floats:
    """Random logits after each token, `(vocab, vocab)`; every one exact in float32."""
    logits = np.random.default_rng(seed).normal(size=(vocab, vocab)) * spread
    return logits.astype(np.float32).astype(np.float64)


def to_mx(values: Floats, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(values.astype(np.float32)).astype(dtype)


def to_np(values: mx.array) -> Floats:
    return np.array(values.astype(mx.float32)).astype(np.float64)


def ints(values: mx.array) -> list[int]:
    return cast("list[int]", values.tolist())


def floats(values: mx.array) -> list[float]:
    return cast("list[float]", values.tolist())


def integer(value: mx.array) -> int:
    return cast(int, value.item())


def number(value: mx.array) -> float:
    return cast(float, value.item())


@final
class TableModel:
    """A language model that looks at the last token only.

    Args:
        logits: After each token, `(vocabulary, columns)`.
        head: Attached to it.
        eos: Ids that end a text.
    """

    def __init__(
        self, logits: mx.array, head: MTPHead | None = None, eos: Sequence[int] = ()
    ) -> None:
        self._logits = logits
        self._head = head
        self._eos = frozenset(eos)

    @property
    def vocab_size(self) -> int:
        return self._logits.shape[1]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._eos

    @property
    def head(self) -> MTPHead | None:
        return self._head

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return None

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return adopt([KVCache()], position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return adopt(cache)

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        group = group_of(cache)
        assert group is not None
        with group.block(tokens) as fed:
            count_rows(cache, fed.shape[1])
        return Forward(self._logits[tokens[0]][None], mx.zeros((1, tokens.shape[1], 1)))


@final
class TableHead:
    """A head that looks at the last token only."""

    def __init__(self, logits: mx.array) -> None:
        self._logits = logits

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        layers: list[Rollbackable] = [RewindableKVCache(position)]
        return join(layers)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        count_rows(cache, tokens.shape[1])
        return Forward(self._logits[tokens[0]][None], hidden)


def count_rows(cache: Sequence[object], count: int) -> None:
    """Make a cache longer by so many empty rows."""
    layer = cache[0]
    assert isinstance(layer, RewindableKVCache)
    rows = mx.zeros((1, 1, count, 1))
    layer.update_and_fetch(rows, rows)


@final
class LookupProposer:
    """Looks drafts up, and draws nothing.

    Args:
        after: The token to draft after each token.
    """

    name: Final = "lookup"

    def __init__(self, after: Sequence[int]) -> None:
        self._after = mx.array(list(after), dtype=mx.uint32)
        self._position = 0

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        tokens = [last_token]
        for _ in range(limit):
            tokens.append(self._after[tokens[-1]])
        return Draft(mx.concatenate(tokens[1:]))

    def settle(self) -> None:
        """Has no cache."""


@final
class Drafting:
    """Drafts by a function of the last token and the limit."""

    name: Final = "drafting"

    def __init__(self, draft: Callable[[int, int, DraftSampler], Draft]) -> None:
        self._draft = draft
        self._position = 0

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return self._draft(cast(int, last_token.item()), limit, choose)

    def settle(self) -> None:
        """Has no cache."""
