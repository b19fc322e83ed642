"""`ModelTests`: the contracts of `SpeculativeModel`, for authors of adapters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, cast, final
from unittest import SkipTest

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.models.adapter import StockAdapter
from speculate.protocols import Proposer, Rollbackable, SpeculativeModel, StockModel
from speculate.testing._adapter_contracts import AdapterContracts
from speculate.testing._model_harness import STOCK, ModelHarness, ModelRun, compare, feed, refuses
from speculate.testing.contract import InjectedError, at_step, contract, require
from speculate.testing.lossless import assert_lossless

WIDTHS: Final = (7, 1, 2, 3, 9, 4, 1, 1, 5, 6, 8, 33)
"""Widths of the blocks in which a sequence is fed, in tokens."""

PROMPTS: Final = (0, 7, 23)
"""Tokens fed first: none, fewer than a window of 8 rows, and more than two windows."""

Rounds = Sequence[tuple[int, int]]
"""For each round, the tokens of its block, and how many of them are right and kept."""

ROUNDS: Final[Rounds] = [
    (1 + drafts, 1 + right) for drafts in (4, 0, 1, 2, 7) for right in range(drafts, -1, -1)
]
"""Several depths, each rejected at every draft and not at all."""


class ModelTests(AdapterContracts):
    """Tests an adapter: derive a class `Test...` and say how to make a model.

    Use a tiny model with random weights, whose attention comes before a recurrent layer if it
    has both, and whose sliding windows have 8 rows.

    Attributes:
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU, unless the
            family rounds blocks differently from single steps, as Mamba2 does: 1e-5.
        whole_blocks: Some layer can only trim whole blocks.
    """

    tolerance: float = 0.0
    whole_blocks: bool = False

    @abstractmethod
    def make_model(self) -> SpeculativeModel:
        """Return the model. It may be the same one every time."""

    def stock_model(self) -> StockModel | None:
        """Return the model of mlx-lm that `make_model`'s drives, if it drives one.

        For an adapter derived from `StockAdapter` this need not be overridden.
        """
        return None

    def proposers(self) -> Sequence[Proposer]:
        """Return proposers to draft with, besides one that is wrong in chosen places."""
        return ()

    def harness(self) -> ModelHarness:
        """Return what the contracts drive."""
        model, stock = self.make_model(), self.stock_model()
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        return ModelHarness(model, stock, self.tolerance)

    @contract
    def test_logits_equal_those_of_mlx_lm(self) -> None:
        """Blocks of any width, over own caches or mlx-lm's, return the stock model's logits."""
        harness = self.harness()
        if harness.stock is None:
            raise SkipTest("there is no model of mlx-lm to compare with: override stock_model")
        ours, theirs = harness.stock_caches(), harness.stock_caches()
        run, start = ModelRun(harness), 0
        for round, width in enumerate(WIDTHS):
            run.feed(width)
            tokens = harness.sequence[start : start + width]
            with at_step(round, start):
                found = feed(harness.model, tokens, ours)
                expected = harness.stock(mx.array([tokens], dtype=mx.uint32), cache=theirs)[0]
                reference = f"{STOCK}, fed the same blocks"
                compare(found, expected, harness.tolerance, start, reference)
            start += width

    @contract
    def test_a_block_equals_single_steps(self) -> None:
        """One block of `T` tokens returns the logits and hidden states of `T` steps."""
        harness = self.harness()
        model, count = harness.model, 40
        tokens = mx.array([harness.sequence[:count]], dtype=mx.uint32)
        whole = model.forward(tokens, model.make_cache())
        width = whole.hidden.shape[-1]
        logits_shape = whole.logits.shape
        require(logits_shape == (1, count, model.vocab_size), f"logits are {logits_shape}")
        require(whole.hidden.shape == (1, count, width), f"hidden is {whole.hidden.shape}")
        run = ModelRun(harness)
        for position in range(count):
            out = run.feed(1)
            found, expected = out.hidden[0], whole.hidden[0, position : position + 1]
            compare(found, expected, harness.tolerance, position, "one block")

    @contract
    def test_rejected_tokens_leave_no_trace(
        self, prompts: Sequence[int] = PROMPTS, rounds: Rounds = ROUNDS
    ) -> None:
        """After every round in a window, the next logits are those of a cold prefill.

        Args:
            prompts: Numbers of tokens to feed first.
            rounds: Tokens of each block, and how many of them are right and kept.
        """
        harness = self.harness()
        for prompt in prompts:
            run = ModelRun(harness, prompt)
            with speculation(run.caches) as window:
                for width, kept in rounds:
                    run.feed(kept, width - kept)
                    window.keep(kept)
                run.feed(1)

    @contract
    def test_a_rewind_spans_several_forwards(
        self, prompt: int = 12, splits: Iterable[Sequence[int]] = ((3, 1, 4), (1,) * 4)
    ) -> None:
        """A window keeps any number of the first tokens of its blocks and continues from there.

        Args:
            prompt: Number of tokens to feed first.
            splits: Widths of the blocks, for each run.
        """
        harness = self.harness()
        for widths in splits:
            for kept in range(sum(widths) + 1):
                run, right = ModelRun(harness, prompt), kept
                with speculation(run.caches) as window:
                    for width in widths:
                        good = min(width, right)
                        run.feed(good, width - good)
                        right -= good
                    window.keep(kept)
                    run.feed(2)
                    window.keep(2)

    @contract
    def test_a_trimmed_block_leaves_no_trace(
        self, prompt: int = 12, widths: Sequence[int] = (1, 4)
    ) -> None:
        """Blocks can be trimmed to every prefix, layer by layer, however they were fed.

        Args:
            prompt: Number of tokens to feed first.
            widths: Widths of the blocks, each fed whole and token by token.
        """
        if self.whole_blocks:
            return
        harness = self.harness()
        for singly in (False, True):
            run = ModelRun(harness, prompt)
            run.start()
            for width in widths:
                for kept in range(width + 1):
                    if singly:
                        for position in range(width):
                            run.feed(*((1, 0) if position < kept else (0, 1)))
                    else:
                        run.feed(kept, width - kept)
                    run.trim(width - kept)
            run.feed(1)

    @contract
    def test_a_block_is_trimmed_in_several_steps(self, prompt: int = 12) -> None:
        """One block is trimmed several times, and the sequence continues from each place.

        Args:
            prompt: Number of tokens to feed first.
        """
        if self.whole_blocks:
            return
        harness = self.harness()
        for right in range(5):
            run = ModelRun(harness, prompt)
            run.start()
            run.feed(right, 9 - right)
            for n in (2, 1, 1):
                run.trim(n)
                run.feed(0, 1)
                run.trim(1)
            run.trim(5 - right)
            run.feed(2)

    @contract
    def test_a_trim_is_exact_or_refused(self) -> None:
        """Layer by layer as mlx-lm calls it, no layer trims what another one could not."""
        harness = self.harness()
        for prompt in (0, 12, 90):
            run = ModelRun(harness, prompt)
            run.feed(1)
            run.start()
            for width in (4, 1, 3):
                run.feed(0, width)
            for n in (10_000, prompt + 10, -1, *(() if run.can_trim(9) else (9,))):
                with at_step(run.rounds, run.length):
                    for layer, cache in enumerate(run.caches):
                        require(refuses(cache, n), f"layer {layer} trimmed {n} tokens")
            for n in (3, 1, 4):
                with at_step(run.rounds, run.length):
                    require(run.can_trim(n), f"the last block of {n} tokens cannot be trimmed")
                run.trim(n)
            run.feed(2)

    @contract
    def test_unrecorded_tokens_are_trimmed_by_all_layers_or_none(self) -> None:
        """Attention refuses a trim that a recurrent layer, not recording, cannot follow."""
        run = ModelRun(self.harness(), 12)
        possible = run.can_trim(2)
        for layer, cache in enumerate(run.caches):
            if not possible:
                require(refuses(cache, 2), f"layer {layer} trimmed what another layer could not")
        if possible:
            run.trim(2)
            run.length -= 2
        run.feed(2)

    @contract
    def test_leaving_a_window_rolls_back_what_was_not_kept(self) -> None:
        """Leaving a window, also by an exception, rolls back blocks and single steps."""
        harness = self.harness()
        for error in (None, ZeroDivisionError):
            run = ModelRun(harness, 12)
            try:
                with speculation(run.caches) as window:
                    run.feed(2)
                    window.keep(2)
                    run.feed(0, 5)
                    run.feed(0, 1)
                    if error is not None:
                        raise error
            except ZeroDivisionError:
                pass
            run.feed(3)

    @contract
    def test_a_failed_forward_consumes_nothing(self) -> None:
        """A forward that fails in any layer leaves every layer as it was."""
        harness = self.harness()
        layers = len(harness.model.make_cache())
        for failing in {0, 1, layers // 2, layers - 1} & set(range(layers)):
            run = ModelRun(harness, 12)
            for width in (1, 5):
                _fail(run, failing, width)
            run.feed(1)
            with speculation(run.caches) as window:
                run.feed(0, 3)
                for width in (1, 5):
                    _fail(run, failing, width)
                window.keep(0)
                run.feed(2)
                window.keep(2)
            run.feed(1)

    @contract
    def test_output_is_that_of_plain_decoding(self) -> None:
        """Speculative decoding is lossless with this model as the target."""
        assert_lossless(self.make_model(), self.proposers(), tokens=20, tolerance=self.tolerance)


def _fail(run: ModelRun, layer: int, width: int) -> None:
    """Run a forward that fails when one layer writes to its cache."""
    caches: list[object] = [*run.caches]
    caches[layer] = FailingCache(run.caches[layer])
    tokens = mx.array([run.harness.wrong(run.length, width)], dtype=mx.uint32)
    with at_step(run.rounds, run.length):
        try:
            mx.eval(run.harness.model.forward(tokens, caches).logits)
        except InjectedError:
            return
        require(False, f"layer {layer} did not use the cache that it was given")


@final
class FailingCache:
    """Stands in for a cache and raises when a layer writes to it."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> object:
        if name in ("update_and_fetch", "advance"):
            raise InjectedError
        return cast(object, getattr(self._cache, name))

    def __getitem__(self, index: int) -> object:
        entry = cast(Sequence[object], self._cache)[index]
        # A cache that holds several caches returns one of them.
        return FailingCache(entry) if isinstance(entry, Rollbackable) else entry

    def __setitem__(self, index: int, value: object) -> None:
        raise InjectedError
