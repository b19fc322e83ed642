"""Bundled models: the output of a seed is the same for every proposer."""

from __future__ import annotations

from functools import cache
from typing import Final, cast

import attrs
import pytest

import speculate as sp
from speculate import SpeculativeModel
from speculate.protocols import Proposer, Strategy
from speculate.sampling.options import Mode
from speculate.testing import ScheduledStrategy
from tests.support import reference

PROMPT: Final = "def read_lines(path):\n"
COUNT: Final = 32
OPTIONS: Final = {
    "plain": sp.Sampling(temperature=1.0),
    "cold": sp.Sampling(temperature=0.3, top_p=0.9, top_k=40),
    "warm": sp.Sampling(temperature=0.7, min_p=0.05),
    "hot": sp.Sampling(temperature=1.5, top_k=20, presence_penalty=1.0),
}


@cache
def bundled() -> tuple[SpeculativeModel, SpeculativeModel, list[int]]:
    """The hybrid, its draft model, and a prompt."""
    model, tokenizer = sp.load_demo("hybrid")
    draft, _ = sp.load_demo("draft")
    return model, draft, cast("list[int]", tokenizer.encode(PROMPT))


def text(strategy: Strategy, sampling: sp.Sampling) -> list[int]:
    model, _, prompt = bundled()
    return reference.ids_of(sp.Decoder(model, strategy, sampling).generate(prompt, COUNT))


def everyone(rounds: int) -> ScheduledStrategy:
    """The head and the draft model in turn, at every depth, and no proposer."""
    head, draft = sp.MTPChain(), sp.DraftModel(bundled()[1])
    proposers: tuple[Proposer, Proposer] = (head, draft)
    return ScheduledStrategy([(proposers[n % 2], n % 6) for n in range(rounds, rounds + 12)])


def check(name: str, seed: int, depth: int) -> None:
    sampling = attrs.evolve(OPTIONS[name], seed=seed)
    plain = text(sp.Off(), sampling)
    assert text(sp.Fixed(sp.MTPChain(), depth), sampling) == plain
    assert text(sp.Fixed(sp.DraftModel(bundled()[1]), depth), sampling) == plain
    assert text(everyone(seed), sampling) == plain


@pytest.mark.parametrize("name", OPTIONS)
def test_the_text_is_the_seed_s_with_any_proposer(name: str) -> None:
    check(name, seed=len(name), depth=len(name) - 2)


@pytest.mark.soak
@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("name", OPTIONS)
def test_ten_seeds_at_each_depth(name: str, depth: int) -> None:
    for seed in range(10):
        check(name, seed, depth)


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_seeded_runs_repeat_themselves_in_the_other_modes(mode: Mode) -> None:
    sampling = sp.Sampling(temperature=1.0, seed=3, mode=mode)
    texts = [text(sp.Fixed(sp.MTPChain(), 3), sampling) for _ in range(2)]
    assert texts[0] == texts[1]
