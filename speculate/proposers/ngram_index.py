"""Where each short run of tokens was followed by another one the last time."""

from __future__ import annotations

from array import array
from typing import Final, final

import attrs

BITS: Final = 32
"""Of an id. An n-gram is one number, its newest token in the lowest bits."""

NOTHING: Final = (1 << BITS) - 1
"""Stands for what is in front of the first token. No id is as large."""


@final
@attrs.frozen
class Match:
    """An earlier occurrence of the end of a text.

    Attributes:
        length: Tokens that agree.
        distance: Tokens from this occurrence to the end of the text, at least 1.
    """

    length: int
    distance: int


@final
class NGramIndex:
    """A text, and for each n-gram in it the place behind its newest occurrence.

    An n-gram enters together with the token that follows it. So the end of the text is not
    among the occurrences, and what is found always goes on. A token costs one entry for
    each length, however long the text is.

    Args:
        shortest: Tokens of the shortest n-grams.
        longest: Tokens of the longest ones.
        window: Tokens at the end of the text in which an occurrence must lie; `None`: all.

    Attributes:
        text: The ids.
    """

    def __init__(self, shortest: int, longest: int, window: int | None) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._window = window
        self.clear()

    def clear(self) -> None:
        """Begin an empty text."""
        self.text: array[int] = array("I")
        self._tables: list[tuple[int, int, dict[int, int]]] = [
            (length, (1 << BITS * length) - 1, {}) for length in self._lengths
        ]
        self._widest = self._tables[0][1]
        self._ending = self._widest  # the longest n-gram at the end: NOTHING, many times

    def append(self, token: int) -> None:
        """The text goes on with this id."""
        place = len(self.text)
        for _, mask, places in self._tables:
            places[self._ending & mask] = place
        self.text.append(token)
        self._ending = self._ending_with(token)

    def find(self, newest: int | None = None) -> Match | None:
        """The newest among the longest earlier occurrences of the end of the text.

        Args:
            newest: A token to look at as if it were appended.
        """
        end, ending = len(self.text), self._ending
        if newest is not None:
            end, ending = end + 1, self._ending_with(newest)
        for length, mask, places in self._tables:
            place = places.get(ending & mask)
            # Not in the index yet: the n-gram that `newest` itself follows.
            if newest is not None and not (ending ^ self._ending) & mask:
                place = end - 1
            if place is not None and self._in_window(end - place + length):
                return Match(length, end - place)
        return None

    def _ending_with(self, token: int) -> int:
        return (self._ending << BITS | token) & self._widest

    def _in_window(self, reach: int) -> bool:
        return self._window is None or reach <= self._window
