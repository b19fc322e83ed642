"""The first round of a sequence is plain, and its time is no baseline where one is known."""

from __future__ import annotations

from speculate import Adaptive, PromptLookup
from speculate.protocols import Round


def observe(strategy: Adaptive, index: int, seconds: float) -> None:
    assert strategy.plan(None).proposer is None
    strategy.observe(Round(index, None, 0, 0, 0, 1, False, seconds=seconds))


def test_a_first_round_without_overlap_leaves_a_known_baseline() -> None:
    strategy = Adaptive(PromptLookup(), measure=False)
    strategy.begin()
    observe(strategy, 0, 0.01)
    assert strategy.plain_seconds == 0.01
    for _ in range(20):
        strategy.begin()
        observe(strategy, 0, 0.03)
    assert strategy.plain_seconds == 0.01
