"""The list of checks, and those of the model itself: forwards, and rewinds of its caches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, final

import attrs
import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.sampling.options import Sampling
from speculate.verify.decoding_checks import (
    AUDITED_DEPTH,
    DEPTHS,
    check_acceptance,
    check_adaptive_sequence,
    check_seed,
    check_sequence,
    check_stock_sequence,
    coupled_sampling,
)
from speculate.verify.oracle import CHUNK, token_row
from speculate.verify.rounding import Difference, Result, Rounding
from speculate.verify.target import BEYOND_WINDOWS, VerificationTarget

WIDTHS: Final = range(1, 10)
"""Widths, in tokens, of the blocks that a walk rewinds."""

CUTS: Final = [(width, kept) for width in WIDTHS for kept in range(width + 1)]
"""Every (block width, tokens kept) pair."""

WALK_START: Final = 3
"""Tokens before the first block of a walk from the start."""

WALK_LENGTH: Final = sum(kept + 1 for _, kept in CUTS)
"""Tokens that a walk adds to the sequence."""

Tail = Callable[[list[int]], list[int]]
"""Makes the tokens that a walk rejects from the true ones at their positions."""


@final
@attrs.frozen
class Case:
    """A check with its arguments.

    Attributes:
        check: Name of the check.
        name: What it is applied to.
    """

    check: str
    name: str
    _make: Callable[[], Result]

    def run(self) -> Result:
        """Run the check. An exception of the model or of a proposer is reported as a bug."""
        try:
            return self._make()
        except Exception as error:
            detail = f"raised {type(error).__name__}: {error}"
            return Result(1, "runs", [Difference(0, math.inf, None, "bug", detail)])


class Step(NamedTuple):
    """One step of a walk in words, and the logits `(kept + 1, vocabulary)` from a position on."""

    position: int
    rows: mx.array
    what: str


def cases(target: VerificationTarget) -> list[Case]:
    """Every check that applies to a model and its drafters, in the order of a report."""
    return list(_cases(target))


def _cases(target: VerificationTarget) -> Iterator[Case]:
    has_stock, drafters = target.oracle.stock is not None, target.drafters
    modes = [("greedy", Sampling()), ("coupled", coupled_sampling(target.seed))]
    if has_stock:
        yield Case("forward", "blocks, mlx-lm's caches", partial(check_block_forward, target))
        prefill = partial(check_prefill_forward, target)
        yield Case("forward", "cold prefill, rewindable caches", prefill)
    yield Case("tails", "two rejected tails per cut", partial(check_tails, target))
    widths = f"blocks of {WIDTHS[0]} to {WIDTHS[-1]}, every cut"
    yield Case("rewind", widths, partial(check_rewind, target))
    if has_stock:
        yield Case("sequence", "mlx-lm, greedy", partial(check_stock_sequence, target, Sampling()))
    for mode, sampling in modes:
        for drafter in drafters:
            name = f"{drafter.name}, depth {DEPTHS[0]} to {DEPTHS[-1]}, {mode}"
            yield Case("sequence", name, partial(check_sequence, target, drafter, sampling))
        if drafters:
            adaptive = partial(check_adaptive_sequence, target, sampling)
            yield Case("sequence", f"adaptive, {mode}", adaptive)
    for mode, sampling in modes:
        for drafter in drafters:
            name = f"{drafter.name}, depth {AUDITED_DEPTH}, {mode}"
            yield Case("acceptance", name, partial(check_acceptance, target, drafter, sampling))
    seed = target.seed + 1  # Another one than that of the sequences.
    run = partial(check_seed, target, seed)
    yield Case("seed", f"{seed}: off, each proposer, alternating", run)


def check_block_forward(target: VerificationTarget) -> Result:
    """Compare the adapter with mlx-lm's model on the same blocks, both on mlx-lm's caches."""
    ours, theirs = target.oracle.caches(), target.oracle.caches()
    differences, start = list[Difference](), 0
    for width in (len(target.prompt), 1, 2, 3, 9, 4, 1, 1, 5, 6):
        ids = target.ids(start, start + width)
        found = target.model.forward(token_row(ids), ours).logits[0]
        expected = target.oracle.feed(ids, theirs)
        # Blocks of the same width round alike on every device.
        differences += Rounding().compare(found, expected, start, f"a block of {width}")
        start += width
    return Result(start, "rows", differences)


def check_prefill_forward(target: VerificationTarget) -> Result:
    """Compare a cold prefill of the adapter on its own caches with one of mlx-lm's model."""
    ids = target.prompt
    found = target.model.forward(token_row(ids), target.model.make_cache()).logits[0]
    differences = Rounding().compare(found, target.oracle.cold(ids), 0, "a cold prefill")
    return Result(len(ids), "rows", differences)


def check_tails(target: VerificationTarget) -> Result:
    """Compare two walks that reject different tokens: kept and following logits must be equal."""
    rows, differences = 0, list[Difference]()
    dice, size = random.Random(target.seed), target.model.vocab_size
    tails: tuple[Tail, ...] = (_shifted_tail(size), lambda ids: [dice.randrange(size) for _ in ids])
    for start in walk_starts(target):
        one, other = (walk(target, start, tail) for tail in tails)
        for step, same in zip(one, other, strict=True):
            rows += step.rows.shape[0]
            differences += target.rounding.compare(same.rows, step.rows, step.position, step.what)
    return Result(rows, "rows", differences)


def check_rewind(target: VerificationTarget) -> Result:
    """Compare a walk with a cold prefill of the same sequence by mlx-lm's model."""
    rows, differences = 0, list[Difference]()
    for start in walk_starts(target):
        ids, found = target.ids(0, start + WALK_LENGTH), list[Difference]()
        expected = target.oracle.cold(ids, start)
        for step in walk(target, start, _shifted_tail(target.model.vocab_size)):
            first, count = step.position - start, step.rows.shape[0]
            rows, same = rows + count, expected[first : first + count]
            found += target.rounding.compare(step.rows, same, step.position, step.what)
        differences += target.recheck(found, ids, start, start)
    filled = (walk_starts(target)[-1] + WALK_LENGTH) / target.window if target.window else 0
    note = f"up to {filled:.1f} windows of {target.window}" if target.window else ""
    return Result(rows, "rows", differences, note)


def walk(target: VerificationTarget, start: int, tail: Tail) -> Iterator[Step]:
    """Prefill `start` tokens, feed blocks of every width, and keep every number of their tokens."""
    model, caches = target.model, target.model.make_cache()
    for position in range(0, start, CHUNK):
        model.forward(token_row(target.ids(position, min(position + CHUNK, start))), caches)
        mx.eval([cache.arrays() for cache in caches])
    with speculation(caches) as window:
        for width, kept in CUTS:
            right, stop = target.ids(start, start + kept), start + kept
            fed = token_row([*right, *tail(target.ids(stop, start + width))])
            block = model.forward(fed, caches).logits[0]
            window.keep(kept)
            after = model.forward(token_row(target.ids(stop, stop + 1)), caches).logits[0]
            window.keep(1)
            rows = mx.concatenate([block[:kept], after])
            mx.eval(rows)
            yield Step(start, rows, f"{kept} kept of a block of {width}")
            start = stop + 1


def walk_starts(target: VerificationTarget) -> list[int]:
    """Positions at which walks start.

    One walk starts near the beginning. Where it ends before two sliding windows are full, one
    more crosses the end of the first window and one starts after the second.
    """
    window = target.window
    if 2 * window + BEYOND_WINDOWS < WALK_START + WALK_LENGTH:
        return [WALK_START]
    middle = max(WALK_START, window - WALK_LENGTH // 2)
    return sorted({WALK_START, middle, 2 * window + BEYOND_WINDOWS})


def _shifted_tail(vocab_size: int) -> Tail:
    """The true tokens, each off by one."""
    return lambda ids: [(id_ + 1) % vocab_size for id_ in ids]
