"""Lookups in earlier turns that are in the cache, and that only the caller knows of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

import speculate as sp
from speculate.protocols import LooksBack, Proposer, Round
from tests.decoding import kit
from tests.decoding.watched import WatchedProposer

TURN: Final = (11, 12, 13, 14, 15, 16, 17, 18)
"""An earlier turn."""

QUOTES: Final = (21, 22, 11, 12, 13)
"""A prompt that quotes its beginning."""


def filled(name: str) -> list[object]:
    """A cache that holds the turn, filled by somebody else."""
    caches = kit.stock_caches(name)
    list(sp.Decoder(kit.get(name).model, sp.Off()).generate(TURN, 0, caches))
    return caches


def drafted(
    name: str, lookup: Proposer, caches: list[object], history: tuple[int, ...]
) -> list[Round]:
    """The rounds of the next turn, whose text is checked."""
    rounds: list[Round] = []
    decoder = sp.Decoder(kit.get(name).model, sp.Fixed(lookup, 4), observer=rounds.append)
    tokens = list(decoder.generate(QUOTES, 12, caches, history=history))
    kit.check_tokens(name, (*TURN, *QUOTES), tokens)
    kit.check_holds(name, caches, [*TURN, *QUOTES, *(token.id for token in tokens)])
    return rounds


@pytest.mark.parametrize("name", kit.PROMISED)
def test_what_an_earlier_turn_said_is_found_where_the_caller_says_what_it_was(name: str) -> None:
    lookup = sp.PromptLookup(min_ngram=3)
    assert isinstance(lookup, LooksBack)
    rounds = drafted(name, lookup, filled(name), TURN)
    assert rounds[0].drafted == 4
    assert not drafted(name, sp.PromptLookup(min_ngram=3), filled(name), ())[0].drafted


def test_it_stays_in_step_with_the_text_however_much_it_was_told() -> None:
    for history in (TURN, TURN[-3:], (1, 2, 3, *TURN)):
        lookup, caches = sp.PromptLookup(), filled("qwen3_5")
        drafted("qwen3_5", lookup, caches, history)
        assert lookup.position() == len(TURN) + len(QUOTES) + 12


class Listener(WatchedProposer):
    """Notes what it is told of earlier turns."""

    def __init__(self) -> None:
        super().__init__(sp.PromptLookup())
        self.told: list[list[int]] = []

    def look_back(self, ids: Sequence[int], /) -> None:
        self.told.append(list(ids))


def test_a_decoder_that_was_there_itself_is_not_told_again() -> None:
    lookup = Listener()
    decoder = sp.Decoder(kit.get("qwen3_5").model, sp.Fixed(lookup, 4))
    caches = kit.stock_caches("qwen3_5")
    list(decoder.generate(TURN, 0, caches))
    list(decoder.generate(QUOTES, 4, caches, history=TURN))
    assert lookup.told == []
    list(decoder.generate(QUOTES, 4, filled("qwen3_5"), history=TURN))
    assert lookup.told == [list(TURN)]


def test_a_turn_that_was_given_up_and_is_tried_again_still_knows_the_earlier_one() -> None:
    name, tries, rounds = "qwen3_5", iter([True]), list[Round]()

    def failing(done: int, total: int) -> None:
        if next(tries, False):
            raise RuntimeError("given up")

    lookup, caches = sp.PromptLookup(min_ngram=3), filled(name)
    decoder = sp.Decoder(
        kit.get(name).model,
        sp.Fixed(lookup, 4),
        observer=rounds.append,
        prompt_progress_callback=failing,
    )
    with pytest.raises(RuntimeError, match="given up"):
        list(decoder.generate(QUOTES, 12, caches, history=TURN))
    tokens = list(decoder.generate(QUOTES, 12, caches, history=TURN))
    kit.check_tokens(name, (*TURN, *QUOTES), tokens)
    assert rounds[0].drafted == 4
