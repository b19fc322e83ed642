"""A forced model emits the text it is given, whoever drafts."""

from __future__ import annotations

import pytest

import speculate as sp
from benchmarks.forcing import ForcedModel
from speculate.protocols import Strategy

PROMPT = [5, 17, 99, 230, 41]
TEXT = [(37 * index) % 1000 + 1 for index in range(40)]


@pytest.mark.parametrize("strategy", [sp.Off(), sp.Fixed(sp.MTPChain(), depth=3)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_comes_out(strategy: Strategy, temperature: float) -> None:
    model = ForcedModel(sp.load_demo()[0], [*PROMPT, *TEXT])
    decoder = sp.Decoder(model, strategy, sp.Sampling(temperature=temperature, seed=3))
    assert [token.id for token in decoder.generate(PROMPT, max_tokens=len(TEXT))] == TEXT


def test_right_drafts_are_accepted() -> None:
    known, tokenizer = sp.load_demo()
    prompt = tokenizer.encode("def main(")
    own = [token.id for token in sp.Decoder(known, sp.Off()).generate(prompt, max_tokens=48)]
    accepted = []
    for model in (known, ForcedModel(known, [*prompt, *own])):
        decoder = sp.Decoder(model, sp.Fixed(sp.MTPChain(), depth=3))
        assert [token.id for token in decoder.generate(prompt, max_tokens=48)] == own
        accepted.append(decoder.stats.accepted_tokens)
    assert accepted[0] == accepted[1] > 0
