"""Proposers and strategies show what they are configured with and where they are."""

from __future__ import annotations

import mlx.core as mx

import speculate as sp
from speculate.protocols import Commit, Costs
from speculate.testing import ToyHead, ToyModel


def test_a_proposer_shows_its_options_and_its_position() -> None:
    lookup = sp.PromptLookup(window=100, name="near")
    lookup.begin(7)
    lookup.commit(Commit(mx.array([1, 2]), mx.zeros((1, 2, 4)), ids=[1, 2]))
    assert repr(lookup) == "<PromptLookup 'near': n-grams of 2 to 5 tokens, window 100, position 9>"
    draft = sp.DraftModel(ToyModel(1), name="small")
    assert repr(draft) == "<DraftModel 'small': ToyModel, position 0>"
    head = sp.MTPChain()
    assert repr(head) == "<MTPChain: no head, position 0>"
    head.attach(ToyModel(1, head=ToyHead(1)))
    assert repr(head).startswith("<MTPChain: ")
    assert "no head" not in repr(head)


def test_a_strategy_shows_its_proposers_and_its_baseline() -> None:
    lookup = sp.PromptLookup()
    assert repr(sp.Off()) == "Off()"
    assert repr(sp.Fixed(lookup, depth=4)) == f"Fixed({lookup!r}, depth=4)"
    assert repr(sp.Adaptive(clock="fixed")) == (
        "<Adaptive: no proposers; fixed clock, no round timed>"
    )
    costs = Costs(0, {1: 0.0123, 2: 0.013}, {})
    assert repr(sp.Adaptive(sp.MTPChain(), lookup, costs=costs)) == (
        "<Adaptive: mtp, lookup; wall clock, plain round 12.3 ms>"
    )
