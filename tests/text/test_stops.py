"""Stop strings: the text is cut at the same letter however it comes in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculate.errors import OptionError
from speculate.text import StopStrings

letters = st.text("ab", max_size=24)
some_stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """Letter by letter: the text before the string that is complete first."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(
    letters,
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.sets(st.integers(0, 24)),
)
def test_pieces_do_not_matter(text: str, stops: list[str], breaks: set[int]) -> None:
    found = StopStrings(stops)
    edges = sorted({0, len(text), *(b for b in breaks if b < len(text))})
    pieces = [found.feed(text[a:b]) for a, b in pairwise(edges)]
    assert "".join([*pieces, found.flush()]) == cut(text, stops)[0]
    assert found.found == cut(text, stops)[1]


@given(letters, some_stops)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(text: str, stops: list[str]) -> None:
    found = StopStrings(stops)
    for end, letter in enumerate(text, 1):
        out = found.feed(letter)
        if found.found:
            return
        held = found.flush()
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        assert text[:end].endswith(out + held)
        found.feed(held)


def test_one_string_is_not_its_letters() -> None:
    stops = StopStrings("END")
    assert stops.feed("E a N b D c EN") == "E a N b D c "
    assert stops.feed("D and more") == ""
    assert stops.found
    assert stops.feed("and more") + stops.flush() == ""


def test_an_empty_string_is_refused() -> None:
    for empty in ("", [""], ["a", ""]):
        with pytest.raises(OptionError, match="empty"):
            StopStrings(empty)
