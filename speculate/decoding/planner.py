"""What the next round will do: the strategy's plan, within what may still be emitted."""

from __future__ import annotations

from typing import final

import attrs

from speculate.decoding.setup import Setup
from speculate.decoding.stats import Stats
from speculate.errors import SpeculateError
from speculate.protocols import Plan


@final
class Planner:
    """Asks the strategy once a round, and never for more than there is room for.

    Args:
        setup: The decoder's parts.
        stats: Counts what was emitted.
        max_tokens: Tokens to emit; `None` without a limit.
    """

    def __init__(self, setup: Setup, stats: Stats, max_tokens: int | None) -> None:
        self._setup = setup
        self._stats = stats
        self._max_tokens = max_tokens
        self._plan: Plan | None = None

    def remaining(self) -> int | None:
        """Tokens still to be emitted; `None` without a limit."""
        return None if self._max_tokens is None else self._max_tokens - self._stats.emitted_tokens

    def take(self, room: int | None, *, pending: int = 0) -> tuple[Plan, int]:
        """The plan of the round that begins now, and the depth that fits.

        Where none does, nobody is asked.

        Args:
            room: Drafts that the caches have room for, if they set a limit.
            pending: Tokens that will be emitted before.
        """
        plan, depth = self._look(room, pending)
        self._plan = None
        if depth or plan.proposer is None:
            return plan, depth
        return attrs.evolve(plan, proposer=None), depth

    def goes_on_plainly(self, room: int | None) -> bool:
        """Whether the step after the present token is sure to be made, without a draft."""
        if self.remaining() == 1 or not self._setup.sampler.launches_ahead:
            return False
        return self._look(room, 1)[1] == 0

    def _look(self, room: int | None, pending: int) -> tuple[Plan, int]:
        remaining = self.remaining()
        left = None if remaining is None else remaining - pending
        if self._plan is None:
            plan: object = self._setup.strategy.plan(left)
            if not isinstance(plan, Plan):
                kind = type(plan).__name__
                raise SpeculateError(f"the strategy's plan() gave no Plan but a {kind}")
            self._plan = plan
            if self._plan.depth < 0:
                raise SpeculateError(f"the strategy planned {self._plan.depth} drafts")
        limits = [self._plan.depth, None if left is None else left - 1, room]
        return self._plan, min(limit for limit in limits if limit is not None)
