"""`ModelTests`: the contracts of `SpeculativeModel`, for authors of adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from unittest import SkipTest

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.errors import CannotRewindError, RewindError, SpeculateError
from speculate.models.adapter import StockAdapter
from speculate.protocols import Proposer, Rollbackable, SpeculativeModel, StockModel
from speculate.testing._cache_harness import require_lengths, require_moved, require_same_objects
from speculate.testing._model_harness import (
    STOCK,
    ModelHarness,
    ModelRun,
    compare,
    feed,
    foreign_methods,
    parts_of,
)
from speculate.testing.contract import at_step, contract, refused, require
from speculate.testing.lossless import assert_lossless

Rounds = Sequence[tuple[int, int]]
"""For each round, the tokens of its block, and how many of them are right and kept."""

ROUNDS: Final[Rounds] = [
    (1 + drafts, 1 + right) for drafts in (4, 0, 1, 2, 7) for right in range(drafts, -1, -1)
]
"""Several depths, each rejected at every draft and not at all."""

ROTATED_TOLERANCE: Final = 1e-4
"""Error of mlx-lm's own single steps once a window has wrapped and its rows are rotated."""


class ModelTests(ABC):
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
        for round, width in enumerate((7, 1, 2, 3, 9, 4, 1, 1, 5, 6, 8, 33)):
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
        self, prompts: Sequence[int] = (0, 7, 23), rounds: Rounds = ROUNDS
    ) -> None:
        """After every round in a window, the next logits are those of a cold prefill.

        A run feeds one of the `prompts`, in tokens, and then a block for each of the `rounds`. By
        default prompts are empty, shorter than a window of 8 rows, and longer than two.
        """
        harness = self.harness()
        for prompt in prompts:
            run = ModelRun(harness, prompt)
            with speculation(run.caches) as window:
                for width, kept in rounds:
                    run.round(window, kept, width - kept)
                run.feed(1)

    @contract
    def test_a_rewind_spans_several_forwards(
        self, prompt: int = 12, splits: Iterable[Sequence[int]] = ((3, 1, 4), (1,) * 4)
    ) -> None:
        """A window keeps any number of the first tokens of its blocks and continues from there.

        Each run feeds `prompt` tokens, and then blocks of the widths of one of the `splits`.
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
                    run.round(window, 2)

    @contract
    def test_a_trimmed_block_leaves_no_trace(
        self, prompt: int = 12, widths: Sequence[int] = (1, 4)
    ) -> None:
        """Blocks can be trimmed to every prefix, layer by layer, however they were fed.

        After `prompt` tokens, blocks of these widths are fed whole and token by token.
        """
        if self.whole_blocks:
            return
        harness = self.harness()
        for singly in (False, True):
            run = ModelRun(harness, prompt)
            run.start()
            for width in widths:
                for kept in range(width + 1):
                    wrong = width - kept
                    steps = [(1, 0)] * kept + [(0, 1)] * wrong
                    for block in steps if singly else [(kept, wrong)]:
                        run.feed(*block)
                    run.trim(wrong)
            run.feed(1)

    @contract
    def test_a_block_is_trimmed_in_several_steps(self, prompt: int = 12) -> None:
        """One block after `prompt` tokens is trimmed in steps; the sequence continues from each."""
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
                        with refused(RewindError, f"layer {layer} trimmed {n} tokens"):
                            cache.trim(n)
            for n in (3, 1, 4):
                with at_step(run.rounds, run.length):
                    require(run.can_trim(n), f"the last block of {n} tokens cannot be trimmed")
                run.trim(n)
            run.feed(2)

    @contract
    def test_unrecorded_tokens_are_trimmed_by_all_layers_or_none(self) -> None:
        """Attention refuses a trim that a recurrent layer, not recording, cannot follow."""
        run = ModelRun(self.harness(), 12)
        if run.can_trim(2):
            run.trim(2)
            run.length -= 2
        else:
            for layer, cache in enumerate(run.caches):
                with refused(RewindError, f"layer {layer} trimmed what another layer could not"):
                    cache.trim(2)
        run.feed(2)

    @contract
    def test_leaving_a_window_rolls_back_what_was_not_kept(self) -> None:
        """Leaving a window, also by an exception, rolls back blocks and single steps."""
        harness = self.harness()
        for error in (None, ZeroDivisionError):
            run = ModelRun(harness, 12)
            with suppress(ZeroDivisionError), speculation(run.caches) as window:
                run.round(window, 2)
                run.feed(0, 5)
                run.feed(0, 1)
                if error is not None:
                    raise error
            run.feed(3)

    @contract
    def test_a_failed_forward_consumes_nothing(self) -> None:
        """A forward that fails in any layer leaves every layer as it was."""
        harness = self.harness()
        layers = len(harness.model.make_cache())
        for failing in {0, 1, layers // 2, layers - 1} & set(range(layers)):
            run = ModelRun(harness, 12)
            for width in (1, 5):
                run.fail(width, failing)
            run.feed(1)
            with speculation(run.caches) as window:
                run.feed(0, 3)
                for width in (1, 5):
                    run.fail(width, failing)
                window.keep(0)
                run.round(window, 2)
            run.feed(1)

    @contract
    def test_mlx_lms_caches_are_adopted_and_handed_back(self) -> None:
        """The same objects are returned, and the sequence continues every time."""
        harness = self.harness()
        caches, start = harness.stock_caches(), 0
        for width in (5, 1, 7, 9, 4):
            feed(harness.model, harness.sequence[start : start + width], caches)
            start += width
            adopted = harness.model.adopt(caches)
            require_moved(caches)
            with speculation(adopted) as window:
                feed(harness.model, harness.wrong(start, 3), adopted)
                window.keep(0)
                found = feed(harness.model, harness.sequence[start : start + 2], adopted)
                harness.compare(found, start, ROTATED_TOLERANCE)
                window.keep(2)
            start += 2
            require_same_objects([cache.release() for cache in adopted], caches)

    @contract
    def test_mlx_lm_continues_from_a_models_caches(self) -> None:
        """The stock model over released caches returns the logits of the sequence."""
        harness = self.harness()
        if harness.stock is None:
            return
        for prompt in (3, 12, 30):
            run = ModelRun(harness, prompt)
            with speculation(run.caches) as window:
                run.round(window, 0, 4)
                run.round(window, 2, 3)
                if any(cache.length() < run.length for cache in run.caches):
                    # A whole block replays what is missing.
                    run.round(window, 1)
            stock = [cache.release() for cache in run.caches]
            for position in range(run.length, run.length + 3):
                tokens = mx.array([[harness.sequence[position]]])
                found = harness.stock(tokens, cache=stock)[0]
                harness.compare(found, position, ROTATED_TOLERANCE)

    @contract
    def test_an_unsupported_cache_is_refused_and_nothing_moves(self) -> None:
        """A list with a cache of a kind that cannot be rewound is refused as a whole."""
        harness = self.harness()
        caches: list[object] = harness.stock_caches()
        feed(harness.model, harness.sequence[:5], caches)
        whole, caches[-1] = caches[-1], object()
        with refused(CannotRewindError, "an object that is no cache was adopted"):
            harness.model.adopt(caches)
        caches[-1] = whole
        harness.compare(feed(harness.model, harness.sequence[5:7], caches), 5)

    @contract
    def test_a_cache_shared_by_layers_is_refused_and_nothing_moves(self) -> None:
        """One cache for two layers is refused: one layer's rows would replace the other's."""
        harness = self.harness()
        made: tuple[list[object], ...] = (harness.stock_caches(), [*harness.model.make_cache()])
        for caches in made:
            feed(harness.model, harness.sequence[:5], caches)
            for shared in ([*caches[:-1], caches[0]], [caches[0]] * len(caches)):
                if len(caches) > 1:
                    with refused(SpeculateError, "one cache was adopted for two layers"):
                        harness.model.adopt(shared)
            harness.compare(feed(harness.model, harness.sequence[5:7], caches), 5)

    @contract
    def test_caches_of_a_model_form_one_group(self) -> None:
        """`make_cache` returns fresh caches, one per layer, each as long as what was fed."""
        harness = self.harness()
        model, sequence = harness.model, harness.sequence
        one, other = model.make_cache(), model.make_cache()
        require(len(one) == len(other) > 0, f"{len(one)} caches, then {len(other)}")
        require(not any(a is b for a in one for b in other), "two lists share a cache")
        require([c.length() for c in one] == [0] * len(one), "a fresh cache is not empty")
        require(all(isinstance(c, Rollbackable) for c in one), "a cache is not Rollbackable")
        feed(model, sequence[:5], one)
        require([c.length() for c in one] == [5] * len(one), "a layer's length is not 5 after 5")
        require([c.length() for c in other] == [0] * len(one), "two lists share a state")
        again = model.adopt(one)
        same = all(a is b for a, b in zip(again, one, strict=True))
        require(same, "adopting rewindable caches returns other ones")

    @contract
    def test_caches_can_start_at_a_later_position(self) -> None:
        """The first token has the given position, and nothing before it can be rolled back."""
        harness = self.harness()
        model, sequence, start = harness.model, harness.sequence, 40
        caches, again = (model.make_cache(position=start) for _ in range(2))
        require_lengths(caches, start, "before anything was fed")
        whole = feed(model, sequence[:6], caches)
        require_lengths(caches, start + 6, "after 6 tokens")
        with speculation(again) as window:
            feed(model, [*sequence[:2], *harness.wrong(2, 4)], again)
            window.keep(2)
            rest, reference = feed(model, sequence[2:6], again), "one block from that position"
            compare(rest, whole[2:], harness.tolerance, start + 2, reference)
            window.keep(4)

    @contract
    def test_malformed_tokens_are_refused_and_change_nothing(self) -> None:
        """A forward takes one sequence of at least one token, and refuses everything else."""
        run = ModelRun(self.harness(), 5)
        for shape in ((3,), (1, 0), (2, 3), (1, 3, 1)):
            with refused(SpeculateError, f"tokens of shape {shape} were accepted"):
                run.harness.model.forward(mx.zeros(shape, dtype=mx.uint32), run.caches)
        run.feed(2)

    @contract
    def test_the_stock_model_is_not_modified(self) -> None:
        """No class, module or output of the stock model changes."""
        harness = self.harness()
        stock = harness.stock
        if stock is None:
            return
        foreign = list(foreign_methods(stock))
        require(not foreign, f"not mlx-lm's own any more: {', '.join(foreign)}")

        def require_same_logits(when: str) -> None:
            found = harness.cold_prefill(tokens)
            require(bool(mx.array_equal(found, logits)), f"its logits change {when}")

        before, tokens = parts_of(stock), harness.sequence[:20]
        logits = harness.cold_prefill(tokens)
        mx.eval(logits)
        run = ModelRun(harness, 5)
        with speculation(run.caches) as window:
            run.round(window, 1, 3)
            require_same_logits("inside a window")
        changed = [name for name, part in parts_of(stock).items() if before.get(name) is not part]
        require(not changed, f"changed: {', '.join(changed)}")
        require_same_logits("after a window")

    @contract
    def test_output_is_that_of_plain_decoding(self) -> None:
        """Speculative decoding is lossless with this model as the target."""
        assert_lossless(self.make_model(), self.proposers(), tokens=20, tolerance=self.tolerance)
