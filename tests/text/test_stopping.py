"""Texts that end at a stop string, and the caches that they leave."""

from __future__ import annotations

from itertools import product

import pytest

import speculate as sp
from speculate.testing import ScriptedProposer
from tests.support import reference, tiny, tokenizers
from tests.support.scripted_model import saying, spelled

DEPTHS = (0, 1, 3, 5)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(
    ("text", "stop", "left", "used"),
    [
        ("abENDcd", "END", "ab", 3),  # one token
        ("abstopcd", "stop", "ab", 4),  # two tokens
        ("abstopcd", "to", "abs", 4),  # ends of two tokens
        ("axyzb", "y", "ax", 2),  # inside a token
        ("ststopab", "stop", "st", 3),  # after a beginning that came to nothing
        ("abstocd", "stop", "abstocd", None),  # a beginning only
        ("abst", "stop", "abst", None),  # a beginning at the end of the budget
        ("aENDbENDc", "END", "a", 2),  # the first of two
    ],
)
def test_the_text_is_cut_before_a_stop_string(
    text: str, stop: str, left: str, used: int | None, depth: int
) -> None:
    ids = spelled(text)
    proposer = ScriptedProposer([2, *ids], vocab_size=tiny.VOCAB)
    caches = reference.stock_caches("qwen3_5")
    found = list(
        sp.stream_generate(
            saying(ids),
            tokenizers.wrapper(),
            [2],
            strategy=sp.Fixed(proposer, depth),
            max_tokens=len(ids),
            stop=["never", stop],
            prompt_cache=caches,
        )
    )
    assert "".join(r.text for r in found) == left
    assert [r.token for r in found] == ids[:used]
    assert [r.finish_reason for r in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1].finish_reason == ("length" if used is None else "stop")
    reference.check_holds("qwen3_5", caches, [2, *ids[:used]])


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_end_of_the_text_releases_what_was_held_back(depth: int) -> None:
    ids = [*spelled("abst"), tokenizers.EOS_ID, 0, 0]
    proposer = ScriptedProposer([2, *ids], vocab_size=tiny.VOCAB)
    found = list(
        sp.stream_generate(
            saying(ids),
            tokenizers.wrapper(tokenizers.EOS_ID),
            [2],
            strategy=sp.Fixed(proposer, depth),
            stop=["stop"],
        )
    )
    assert "".join(r.text for r in found) == "abst"
    assert found[-1].finish_reason == "stop"
    assert found[-1].token == tokenizers.EOS_ID


def test_a_stop_string_that_the_detokenizer_held_back() -> None:
    """It waits with a space until it sees the next token, or that there is none."""
    found = list(
        sp.stream_generate(saying([0, 56, 1]), tokenizers.wrapper(), [2], stop=" ", max_tokens=2)
    )
    assert "".join(r.text for r in found) == "a"
    assert found[-1].finish_reason == "stop"


def test_where_it_is_cut_does_not_depend_on_who_drafts() -> None:
    ids = spelled("abstopxyzENDst")
    for stop, depth in product(("st", "topx", "zE", "Ds"), DEPTHS):
        proposer = ScriptedProposer([2, *ids], reference.always("each"), vocab_size=tiny.VOCAB)
        text = sp.generate(
            saying(ids),
            tokenizers.wrapper(),
            [2],
            strategy=sp.Fixed(proposer, depth),
            max_tokens=len(ids),
            stop=stop,
        )
        assert text == "abstopxyzENDst".partition(stop)[0]
