"""What a multi-token-prediction head must do: the laws of `MTPHead`."""

from __future__ import annotations

from typing import Final, final

import mlx.core as mx

from speculate.backends.group import group_of
from speculate.decoding.window import speculation
from speculate.errors import SpeculateError
from speculate.protocols import Forward, MTPHead, Rollbackable
from speculate.testing.broken import at, law, require
from speculate.testing.driving import compare

ROWS: Final = 40
LATE: Final = 17


@final
class DrivenHead:
    """A head, and rows to feed it with.

    Args:
        head: Under test.
        width: Of the target's hidden states.
        vocab_size: Columns of the target's logits.
        tolerance: How far numbers may be off, in units of the largest. 0 on the CPU.
        dtype: Of the target's hidden states.
    """

    def __init__(
        self,
        head: MTPHead,
        *,
        width: int,
        vocab_size: int,
        tolerance: float = 0.0,
        dtype: mx.Dtype = mx.float32,
    ) -> None:
        self.head = head
        self.vocab_size = vocab_size
        self.tolerance = tolerance
        hidden = mx.random.normal((1, ROWS, width), key=mx.random.key(1))
        self.hidden: mx.array = hidden.astype(dtype)
        tokens = mx.random.randint(0, vocab_size, (1, ROWS), key=mx.random.key(2))
        self.tokens: mx.array = tokens
        self._whole: Forward | None = None

    def step(self, start: int, stop: int, cache: list[Rollbackable]) -> Forward:
        """One pass over some of the rows."""
        return self.head.step(self.hidden[:, start:stop], self.tokens[:, start:stop], cache)

    def compare(self, found: Forward, start: int) -> None:
        """Compare with what one pass over all rows gives.

        Raises:
            BrokenLawError: Logits or hidden states are off.
        """
        self._whole = self._whole or self.step(0, ROWS, self.head.make_cache())
        stop = start + found.logits.shape[1]
        whole = self._whole
        for rows, expected in ((found.logits, whole.logits), (found.hidden, whole.hidden)):
            compare(rows[0], expected[0, start:stop], self.tolerance, start, "one pass")


@law
def one_step_over_many_rows_is_many_steps(driven: DrivenHead) -> None:
    """Logits and output of a batch are those of single rows, in any split."""
    for sizes in ([1] * ROWS, [3, 1, 4, 32], [39, 1], [1, 39]):
        cache, start = driven.head.make_cache(), 0
        for round, size in enumerate(sizes):
            with at(round, start):
                driven.compare(driven.step(start, start + size, cache), start)
            start += size


@law
def a_pass_gives_a_row_for_each_token(driven: DrivenHead) -> None:
    """Logits of the vocabulary, and an output that the next step of a chain can take."""
    cache = driven.head.make_cache()
    out = driven.step(0, 5, cache)
    require(out.logits.shape == (1, 5, driven.vocab_size), f"logits are {out.logits.shape}")
    require(out.hidden.shape == driven.hidden[:, :5].shape, f"hidden is {out.hidden.shape}")
    require(out.hidden.dtype == driven.hidden.dtype, f"hidden is {out.hidden.dtype}")
    again = driven.head.step(out.hidden[:, -1:], driven.tokens[:, 5:6], cache)
    require(again.logits.shape == (1, 1, driven.vocab_size), "a chain does not go on")


@law
def both_inputs_of_a_row_count(driven: DrivenHead) -> None:
    """Another token, or another hidden state, changes what is guessed behind it."""
    hidden, tokens = driven.hidden[:, :1], driven.tokens[:, :1]
    said = driven.head.step(hidden, tokens, driven.head.make_cache()).logits
    for other in ((-hidden, tokens), (hidden, (tokens + 1) % driven.vocab_size)):
        changed = driven.head.step(*other, driven.head.make_cache()).logits
        require(not bool(mx.array_equal(said, changed)), "an input makes no difference")


@law
def a_chain_is_taken_back_without_a_trace(driven: DrivenHead) -> None:
    """Rows with true hidden states stay, in one batch with the next chain's first step."""
    cache, done = driven.head.make_cache(), 0
    with speculation(cache) as window:
        for round, (rows, depth) in enumerate(((5, 3), (1, 1), (4, 4), (1, 0), (2, 3), (9, 2))):
            with at(round, done):
                out = driven.step(done, done + rows, cache)
                driven.compare(out, done)
                for token in range(depth):
                    hidden = out.hidden[:, -1:]
                    out = driven.head.step(hidden, mx.array([[token]]), cache)
                window.keep(rows)
                done += rows
                lengths = [layer.length() for layer in cache]
                require(lengths == [done] * len(lengths), f"{lengths} rows instead of {done}")


@law
def its_caches_are_its_own(driven: DrivenHead) -> None:
    """One group, fresh each time, as long as what was fed, and from any position on."""
    for position in (0, LATE):
        one, other = driven.head.make_cache(position), driven.head.make_cache(position)
        require(group_of(one) is not None, "the caches are of no group: see join")
        require(not any(a is b for a in one for b in other), "two lists share a cache")
        require(all(c.length() == position for c in one), f"it does not start at {position}")
        driven.step(0, 6, one)
        lengths = [c.length() for c in one]
        require(lengths == [position + 6] * len(one), f"lengths {lengths} after 6 rows")
        require(all(c.length() == position for c in other), "two lists share a state")
        require(not any(c.can_trim(7) for c in one), "goes back behind its start")


@law
def bad_input_is_refused_and_leaves_no_row(driven: DrivenHead) -> None:
    """A hidden state for each token, of one sequence."""
    cache = driven.head.make_cache()
    driven.step(0, 3, cache)
    hidden, tokens = driven.hidden[:, 3:7], driven.tokens[:, 3:7]
    for bad in ((hidden[:, :3], tokens), (hidden, tokens[0]), (hidden[0], tokens)):
        try:
            driven.head.step(*bad, cache)
        except SpeculateError:
            continue
        require(False, f"hidden {bad[0].shape} and tokens {bad[1].shape} were accepted")
    driven.compare(driven.step(3, 7, cache), 3)
