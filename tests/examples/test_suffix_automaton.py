"""The example of a proposer, proved by the tests that its author would inherit."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from examples.suffix_automaton import SuffixAutomaton
from speculate.protocols import Commit, Proposer
from speculate.testing import ProposerTests
from speculate.testing.proposers import greedy


class TestSuffixAutomaton(ProposerTests):
    def make_proposer(self) -> Proposer:
        return SuffixAutomaton()


def scanned(text: list[int], limit: int) -> list[int]:
    """The same by looking at every place: after the first end of the longest match."""
    for length in range(len(text) - 1, 0, -1):
        ending = text[-length:]
        for end in range(length, len(text)):
            if text[end - length : end] == ending:
                return text[end : len(text) - 1][:limit]
    return []


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_longest_end_that_occurred_before(seed: int) -> None:
    dice = random.Random(seed)
    text = [dice.randrange(dice.choice((2, 3, 9))) for _ in range(60)]
    proposer: Proposer = SuffixAutomaton()
    for place, token in enumerate(text):
        last_token = mx.array([token], dtype=mx.uint32)
        found = proposer.propose(last_token, 5, greedy).tokens.tolist()
        assert found == scanned(text[: place + 1], 5)
        proposer.commit(Commit(last_token, mx.zeros((1, 1, 4)), None, [token]))
