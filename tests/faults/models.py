"""Faults in adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mlx.core as mx
from mlx_lm.models import granite

from speculate import SpeculativeModel
from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.group import group_of, join
from speculate.models.adapter import DenseAdapter
from speculate.protocols import Forward, Rollbackable, StockModel
from speculate.testing import ModelTests, ToyModel
from tests.faults.planting import Patch, fault
from tests.support import tiny
from tests.support.recording import PassingModel


class Stock:
    """A `ToyModel` with the interface of mlx-lm's models."""

    def __init__(self) -> None:
        self.inner = ToyModel()
        self.layers: list[object] = []

    def __call__(self, inputs: mx.array, /, cache: list[object] | None = None) -> mx.array:
        caches = self.inner.make_cache() if cache is None else cache
        return self.inner.forward(inputs, caches).logits

    def named_modules(self) -> list[tuple[str, object]]:
        return []


class ToyTests(ModelTests):
    """Tests `part`."""

    part: ClassVar[Callable[[], SpeculativeModel]]

    def make_model(self) -> SpeculativeModel:
        return type(self).part()

    def stock_model(self) -> StockModel:
        return Stock()


class Toy(PassingModel):
    """Delegates to a `ToyModel`."""

    suite = ToyTests

    def __init__(self) -> None:
        self.toy = ToyModel()
        super().__init__(self.toy)


class DenseTests(ModelTests):
    """Tests a `DenseAdapter`."""

    def __init__(self) -> None:
        self._stock: Any = self.make_stock()

    def make_stock(self) -> Any:
        return tiny.dense()

    def make_model(self) -> SpeculativeModel:
        return DenseAdapter(self._stock)

    def stock_model(self) -> StockModel:
        stock: StockModel = self._stock
        return stock


@fault(
    "Tokens of a block see the tokens after them.",
    caught_by="test_a_block_equals_single_steps",
)
class TokensSeeLaterTokens(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self.inner.forward(tokens, cache)
        return Forward(out.logits, out.hidden.mean(axis=1, keepdims=True) + 0 * out.hidden)


@fault(
    "`make_cache` ignores the position at which the sequence starts.",
    caught_by="test_caches_can_start_at_a_later_position",
)
class CachesStartAtZero(Toy):
    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(max_kv_size)


@fault(
    "Blocks are computed in half precision, and single steps are not.",
    caught_by="test_logits_equal_those_of_mlx_lm",
)
class BlocksAreRounded(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self.inner.forward(tokens, cache)
        if tokens.shape[1] == 1:
            return out
        return Forward(out.logits.astype(mx.bfloat16).astype(mx.float32), out.hidden)


@fault(
    "A forward accepts a batch and feeds its first sequence.",
    caught_by="test_malformed_tokens_are_refused_and_change_nothing",
)
class ABatchIsAccepted(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        return self.inner.forward(tokens.reshape(-1)[None] if tokens.size else tokens, cache)


@fault(
    "A forward is not atomic: if it fails, some layers keep its block.",
    caught_by="test_a_failed_forward_consumes_nothing",
)
class ForwardsAreNotAtomic(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        return self.toy._walk(tokens, cache)


@fault(
    "The caches before an unsupported one are adopted.",
    caught_by="test_an_unsupported_cache_is_refused_and_nothing_moves",
)
class HalfAListIsAdopted(Toy):
    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        known = [self.inner.adopt([one])[0] for one in cache[:-1]]
        return join([*known, *self.inner.adopt(cache[-1:])])


@fault(
    "The logits of a block begin with those of its second token.",
    caught_by="test_logits_equal_those_of_mlx_lm",
)
class LogitsAreOneRowLate(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self.inner.forward(tokens, cache)
        return Forward(mx.roll(out.logits, -1, 1), out.hidden)


@fault(
    "The logits include rows of replayed tokens.",
    caught_by="test_rejected_tokens_leave_no_trace",
)
class ReplayedTokensHaveLogits(Toy):
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        group = group_of(cache)
        if group is None:
            return self.inner.forward(tokens, cache)
        with group.block(tokens) as fed:
            return self.toy._walk(fed, cache)

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        caches = self.inner.make_cache(position=position)
        state = caches[1]
        assert isinstance(state, RewindableArraysCache)
        # Without records the state can only be rewound by whole blocks.
        state.record_rollback = lambda *args: None  # type: ignore[method-assign]
        return caches


@fault(
    "The stock model scales its logits, and the adapter does not: greedy output is equal.",
    caught_by="test_logits_equal_those_of_mlx_lm",
)
class LogitsAreNotScaled:
    class suite(DenseTests):
        def make_stock(self) -> Any:
            args = granite.ModelArgs(
                model_type="granite",
                hidden_size=32,
                num_hidden_layers=2,
                intermediate_size=48,
                num_attention_heads=4,
                rms_norm_eps=1e-5,
                vocab_size=tiny.VOCAB,
                logits_scaling=1.25,
                attention_multiplier=0.35,
                embedding_multiplier=1.0,
                residual_multiplier=1.0,
                max_position_embeddings=512,
                num_key_value_heads=2,
                attention_bias=False,
                mlp_bias=False,
                rope_theta=1e4,
            )
            return tiny.spread(granite.Model(args))

    @staticmethod
    def plant(patch: Patch) -> None:
        """Nothing to patch: the adapter is not made for this model."""


@fault(
    "Adapting a model replaces a method of its class.",
    caught_by="test_the_stock_model_is_not_modified",
)
class TheStockClassIsPatched:
    suite = DenseTests

    @staticmethod
    def plant(patch: Patch) -> None:
        walk = DenseAdapter.forward_stock

        def patching(self: DenseAdapter, tokens: mx.array, cache: Sequence[object]) -> Forward:
            layer: Any = type(self.layers[0])
            call = layer.__call__
            if not getattr(call, "ours", False):

                def ours(*args: Any, **kwargs: Any) -> Any:
                    return call(*args, **kwargs)

                ours.ours = True  # type: ignore[attr-defined]
                patch.setattr(layer, "__call__", ours)
            return walk(self, tokens, cache)

        patch.setattr(DenseAdapter, "forward_stock", patching)


@fault(
    "One cache for two layers is adopted twice, and rows are lost.",
    caught_by="test_a_cache_shared_by_layers_is_refused_and_nothing_moves",
)
class LayersShareACache(Toy):
    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        alone = [self.inner.adopt([one])[0] for one in cache]
        return alone if all(isinstance(one, Rollbackable) for one in cache) else join(alone)


@fault(
    "`make_cache` returns the same caches every time.",
    caught_by="test_caches_of_a_model_form_one_group",
)
class SequencesShareACache(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.caches = self.inner.make_cache()

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(position=position) if position else self.caches
