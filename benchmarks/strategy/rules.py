"""Other ways to decide, to compare with."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from benchmarks.strategy.fixed_choices import ARMS, Arm, proposer_of
from speculate.protocols import Plan, Proposer, Round

TIERS: Final = (1, 3, 7)
WEIGHT: Final = 0.2
"""Of the last accepted length in the moving average."""

WARM_UP: Final = 10
INTERVAL: Final = 5
DOWN_MARGIN: Final = -0.25


@final
class AcceptedTiers:
    """One proposer at depth 1, 3 or 7, by a moving average of how many drafts were accepted.

    The depth aimed at is one more than the average, rounded. The first 10 rounds change
    nothing, then every fifth may; going down takes a margin of a quarter. Costs play no role,
    and it never stops drafting.

    Source: SGLang's documentation, "Adaptive Speculative Decoding", with its defaults:
    https://docs.sglang.io/docs/advanced_features/adaptive_speculative_decoding

    Args:
        proposer: Who drafts.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._tier = 1
        self._average: float | None = None
        self._rounds = 0

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self._proposer,)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan(self._proposer, TIERS[self._tier])

    def observe(self, round: Round, /) -> None:
        if not round.drafted:
            return
        before = round.accepted if self._average is None else self._average
        self._average = before + WEIGHT * (round.accepted - before)
        self._rounds += 1
        if self._rounds > WARM_UP and not (self._rounds - WARM_UP) % INTERVAL:
            self._move(self._average)

    def _move(self, average: float) -> None:
        """Rounded and one more is above `d` from `d - 0.5` on."""
        while self._tier and average <= TIERS[self._tier - 1] - 0.5 + DOWN_MARGIN:
            self._tier -= 1
        while self._tier < len(TIERS) - 1 and average > TIERS[self._tier] - 0.5:
            self._tier += 1


@final
class UCB1:
    """Every fixed choice as the arm of a bandit; a round's reward is its tokens per time.

    Source: Auer, Cesa-Bianchi and Fischer, "Finite-time Analysis of the Multiarmed Bandit
    Problem" (2002), figure 1. Rewards are divided by the largest one so far.

    Args:
        proposers: Who may draft.
        arms: The choices.
    """

    def __init__(self, proposers: Sequence[Proposer], arms: Sequence[Arm] = ARMS) -> None:
        self._proposers = proposers
        self._plans = [Plan(proposer_of(arm, proposers), arm.depth) for arm in arms]
        self._pulls = [0] * len(arms)
        self._rewards = [0.0] * len(arms)
        self._largest = 0.0
        self._pending: deque[int] = deque()

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._proposers

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        arm = self._choose()
        self._pulls[arm] += 1
        self._pending.append(arm)
        return self._plans[arm]

    def observe(self, round: Round, /) -> None:
        reward = round.emitted / round.seconds
        self._rewards[self._pending.popleft()] += reward
        self._largest = max(self._largest, reward)

    def _choose(self) -> int:
        if 0 in self._pulls:
            return self._pulls.index(0)
        logarithm = 2 * math.log(sum(self._pulls))
        bounds = [
            reward / self._largest / pulls + math.sqrt(logarithm / pulls)
            for reward, pulls in zip(self._rewards, self._pulls, strict=True)
        ]
        return bounds.index(max(bounds))
