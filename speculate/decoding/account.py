"""What became of a round, counted and told once nothing more of it will be emitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast, final

from speculate.decoding.block import Block
from speculate.decoding.setup import Setup
from speculate.decoding.stats import Stats
from speculate.protocols import Round


@final
class Account:
    """Times rounds, and tells the strategy and the observer of them, in order.

    Args:
        setup: The decoder's parts.
        stats: Where to count.
    """

    def __init__(self, setup: Setup, stats: Stats) -> None:
        self._setup = setup
        self._stats = stats
        self._block: Block | None = None
        self._seconds = 0.0
        self._ahead = 0.0
        self._ended = 0.0
        self._observing = 0.0
        self._context = 0
        self._index = 0

    @contextmanager
    def timed(self, *, launched: bool) -> Iterator[None]:
        """Time the round that is made meanwhile, without what the observer takes.

        Args:
            launched: Its forward was launched in the round before.
        """
        began, self._observing = time.perf_counter(), 0.0
        ahead = began - self._ended if launched else 0.0
        yield
        self._ended = time.perf_counter()
        self._seconds = self._ended - began - self._observing
        self._ahead = ahead

    def open(self, block: Block, context: int) -> None:
        """A block is ready to be given out.

        Args:
            block: The block.
            context: Tokens of text in front of what it gives.
        """
        self._block, self._context, self._index = block, context, self._stats.rounds

    def close(self, emitted: int, accepted: int, *, cut: bool) -> None:
        """Nothing more of the open block will be emitted.

        Can be called again: it goes on where an interrupt came. Strategy and observer hear of a
        round once at most.

        Args:
            emitted: Tokens that came out of it.
            accepted: Drafts that stood.
            cut: The text ended in this block.
        """
        block = self._block
        if block is None or not emitted:
            return
        round = Round(
            index=self._index,
            proposer=block.proposer if block.drafted else None,
            planned=block.plan.depth,
            drafted=block.drafted,
            accepted=min(emitted, accepted),
            emitted=emitted,
            cut=cut,
            seconds=self._seconds,
            context=self._context,
            confidence=[cast(float, value.item()) for value in block.confidence],
            predicted=block.plan.predicted,
            plain_seconds=block.plan.plain_seconds,
            asked=block.proposer,
            ahead=self._ahead,
        )
        if self._stats.rounds == self._index:
            self._stats.count(round)
        self._block = None
        self._setup.strategy.observe(round)
        if self._setup.observer is not None:
            began = time.perf_counter()
            self._setup.observer(round)
            self._observing = time.perf_counter() - began
