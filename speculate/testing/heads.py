"""`HeadTests`: the contracts of `MTPHead`, for authors of multi-token-prediction heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

import mlx.core as mx

from speculate.backends.group import group_of
from speculate.decoding.window import speculation
from speculate.errors import SpeculateError
from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing._model_harness import compare
from speculate.testing.contract import at_step, contract, refused, require

ROWS: Final = 40
"""Rows that a head is fed with."""


@final
class HeadHarness:
    """The head of a suite, and random rows `(1, ROWS, width)` and ids to feed it with."""

    def __init__(self, suite: HeadTests) -> None:
        self.head: MTPHead = suite.make_head()
        self.vocab_size: int = suite.vocab_size
        one, other = mx.random.key(1), mx.random.key(2)
        hidden = mx.random.normal((1, ROWS, suite.width), key=one)
        self.hidden: mx.array = hidden.astype(suite.dtype)
        self.tokens: mx.array = mx.random.randint(0, self.vocab_size, (1, ROWS), key=other)
        self._tolerance = suite.tolerance
        self._whole: Forward | None = None

    def step(self, start: int, stop: int, cache: list[Rollbackable]) -> Forward:
        """Run one step over rows `start` to `stop`."""
        return self.head.step(self.hidden[:, start:stop], self.tokens[:, start:stop], cache)

    def compare(self, found: Forward, start: int) -> None:
        """Compare the output of a step, whose first row is `start`, with one step over all rows."""
        self._whole = whole = self._whole or self.step(0, ROWS, self.head.make_cache())
        stop = start + found.logits.shape[1]
        for rows, expected in ((found.logits, whole.logits), (found.hidden, whole.hidden)):
            compare(rows[0], expected[0, start:stop], self._tolerance, start, "one step")


class HeadTests(ABC):
    """Tests a head: derive a class `Test...` and say how to make a head.

    Attributes:
        width: Width of the target's hidden states.
        vocab_size: Columns of the target's logits.
        tolerance: How far numbers may be off, in units of the largest. 0 on the CPU.
        dtype: Of the target's hidden states.
    """

    width: int
    vocab_size: int
    tolerance: float = 0.0
    dtype: mx.Dtype = mx.float32

    @abstractmethod
    def make_head(self) -> MTPHead:
        """Return the head. It may be the same one every time."""

    def harness(self) -> HeadHarness:
        """Return what the contracts drive."""
        return HeadHarness(self)

    @contract
    def test_a_batch_of_rows_equals_single_rows(self) -> None:
        """Logits and hidden states do not depend on how rows are split into steps."""
        harness = self.harness()
        for sizes in ([1] * ROWS, [3, 1, 4, 32], [39, 1], [1, 39]):
            cache, start = harness.head.make_cache(), 0
            for round, size in enumerate(sizes):
                with at_step(round, start):
                    harness.compare(harness.step(start, start + size, cache), start)
                start += size

    @contract
    def test_a_step_returns_a_row_for_each_token(self) -> None:
        """Logits cover the vocabulary, and the next step of a chain accepts the hidden states."""
        harness = self.harness()
        cache = harness.head.make_cache()
        out = harness.step(0, 5, cache)
        require(out.logits.shape == (1, 5, harness.vocab_size), f"logits are {out.logits.shape}")
        require(out.hidden.shape == harness.hidden[:, :5].shape, f"hidden is {out.hidden.shape}")
        require(out.hidden.dtype == harness.hidden.dtype, f"hidden is {out.hidden.dtype}")
        again = harness.head.step(out.hidden[:, -1:], harness.tokens[:, 5:6], cache)
        require(again.logits.shape == (1, 1, harness.vocab_size), "a chain does not continue")

    @contract
    def test_tokens_and_hidden_states_both_matter(self) -> None:
        """Another token, or another hidden state, changes the logits."""
        harness = self.harness()
        head, hidden, tokens = harness.head, harness.hidden[:, :1], harness.tokens[:, :1]
        logits = head.step(hidden, tokens, head.make_cache()).logits
        for other in ((-hidden, tokens), (hidden, (tokens + 1) % harness.vocab_size)):
            changed = head.step(*other, head.make_cache()).logits
            require(not bool(mx.array_equal(logits, changed)), "an input makes no difference")

    @contract
    def test_a_rolled_back_chain_leaves_no_trace(self) -> None:
        """Rows with the target's hidden states remain, in one batch with the next chain."""
        harness = self.harness()
        cache, done = harness.head.make_cache(), 0
        rounds = ((5, 3), (1, 1), (4, 4), (1, 0), (2, 3), (9, 2))
        with speculation(cache) as window:
            for round, (rows, depth) in enumerate(rounds):
                with at_step(round, done):
                    out = harness.step(done, done + rows, cache)
                    harness.compare(out, done)
                    for token in range(depth):
                        hidden = out.hidden[:, -1:]
                        out = harness.head.step(hidden, mx.array([[token]]), cache)
                    window.keep(rows)
                    done += rows
                    lengths = [layer.length() for layer in cache]
                    require(lengths == [done] * len(lengths), f"{lengths} rows instead of {done}")

    @contract
    def test_every_cache_list_is_a_group_of_its_own(self) -> None:
        """`make_cache` returns one fresh group that starts at any position."""
        harness = self.harness()
        head = harness.head
        for position in (0, 17):
            one, other = head.make_cache(position), head.make_cache(position)
            require(group_of(one) is not None, "the caches form no group: see join")
            require(not any(a is b for a in one for b in other), "two lists share a cache")
            require(all(c.length() == position for c in one), f"does not start at {position}")
            harness.step(0, 6, one)
            lengths = [c.length() for c in one]
            require(lengths == [position + 6] * len(one), f"lengths {lengths} after 6 rows")
            require(all(c.length() == position for c in other), "two lists share a state")
            require(not any(c.can_trim(7) for c in one), "can be trimmed beyond its start")

    @contract
    def test_malformed_input_is_refused_and_leaves_no_row(self) -> None:
        """A step takes one sequence with a hidden state per token, and refuses everything else."""
        harness = self.harness()
        cache = harness.head.make_cache()
        harness.step(0, 3, cache)
        hidden, tokens = harness.hidden[:, 3:7], harness.tokens[:, 3:7]
        for bad in ((hidden[:, :3], tokens), (hidden, tokens[0]), (hidden[0], tokens)):
            said = f"hidden {bad[0].shape} and tokens {bad[1].shape} were accepted"
            with refused(SpeculateError, said):
                harness.head.step(*bad, cache)
        harness.compare(harness.step(3, 7, cache), 3)
