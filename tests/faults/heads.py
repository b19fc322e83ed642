"""Faults in multi-token-prediction heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import mlx.core as mx

from speculate.backends.kv import RewindableKVCache
from speculate.errors import OptionError
from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing import HeadTests, ToyHead
from speculate.testing.toy import WIDTH
from tests.faults.planting import fault


class ToyTests(HeadTests):
    """Tests `part`."""

    width = WIDTH
    vocab_size = 64
    part: ClassVar[Callable[[], MTPHead]]

    def make_head(self) -> MTPHead:
        return type(self).part()


class Toy:
    """Delegates to a `ToyHead`."""

    suite = ToyTests

    def __init__(self) -> None:
        self.inner = ToyHead()

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.inner.make_cache(position)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        return self.inner.step(hidden, tokens, cache)


@fault(
    "A row of refused input is already in the cache.",
    caught_by="test_malformed_input_is_refused_and_leaves_no_row",
)
class RefusedInputLeavesARow(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        if hidden.shape[:-1] != tokens.shape:
            self.inner.step(
                hidden.reshape(1, -1, WIDTH)[:, :1], tokens.reshape(1, -1)[:, :1], cache
            )
            raise OptionError("hidden and tokens do not fit")
        return self.inner.step(hidden, tokens, cache)


@fault(
    "`make_cache` ignores the position at which the sequence starts.",
    caught_by="test_every_cache_list_is_a_group_of_its_own",
)
class CachesStartAtZero(Toy):
    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.inner.make_cache()


@fault(
    "A batch pairs each token with the hidden state of the row before.",
    caught_by="test_a_batch_of_rows_equals_single_rows",
)
class HiddenStatesAreOneRowEarly(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        return self.inner.step(mx.roll(hidden, 1, 1), tokens, cache)


@fault(
    "The head predicts from tokens alone.",
    caught_by="test_tokens_and_hidden_states_both_matter",
)
class HiddenStatesAreIgnored(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        return self.inner.step(mx.ones_like(hidden), tokens, cache)


@fault(
    "`make_cache` does not join its caches, and a window cannot rewind them.",
    caught_by="test_every_cache_list_is_a_group_of_its_own",
)
class CachesFormNoGroup(Toy):
    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return [RewindableKVCache(position)]


@fault(
    "A batch returns logits for its last row only.",
    caught_by="test_a_step_returns_a_row_for_each_token",
)
class OnlyTheLastRowIsReturned(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        out = self.inner.step(hidden, tokens, cache)
        return Forward(out.logits[:, -1:], out.hidden[:, -1:])


@fault(
    "The last row of a batch is not written to the cache.",
    caught_by="test_a_batch_of_rows_equals_single_rows",
)
class TheLastRowIsNotCached(Toy):
    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        out = self.inner.step(hidden, tokens, cache)
        if tokens.shape[-1] > 1:
            for layer in cache:
                layer.trim(1)
        return out


@fault(
    "`make_cache` returns the same caches every time.",
    caught_by="test_every_cache_list_is_a_group_of_its_own",
)
class SequencesShareACache(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.caches: dict[int, list[Rollbackable]] = {}

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.caches.setdefault(position, self.inner.make_cache(position))
