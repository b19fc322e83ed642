"""What lookups that were not made would have been worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, final

from speculate.proposers.ngram_index import Match
from speculate.protocols import Hindsight

LONGEST: Final = 16
"""Tokens of a draft that are foreseen, and compared with the text."""

KEPT: Final = 256
"""Results that wait to be asked for. Whoever asks once a round gets all of them."""


@final
class Outlooks:
    """Compares the drafts that could have been made with the text that came.

    A copy from `distance` tokens back is right for as long as the text repeats itself at that
    distance. So all that were opened at one distance, as in a long quotation, live and end
    together, and a token costs one comparison for each distance that is still open.
    """

    def __init__(self) -> None:
        self._open: dict[int, deque[tuple[int, int]]] = {}  # at each distance: kind, start
        self._settled: deque[Hindsight] = deque(maxlen=KEPT)

    def open(self, match: Match, end: int) -> None:
        """A draft could be made now, at the end of a text of so many tokens."""
        self._open.setdefault(match.distance, deque()).append((match.length, end))

    def compare(self, text: Sequence[int], token: int) -> None:
        """This id comes next in the text."""
        end = len(text)
        for distance in list(self._open):
            same = self._open[distance]
            if text[end - distance] != token:
                for kind, start in self._open.pop(distance):
                    self._settled.append(Hindsight(kind, end - start + 1, end - start, ended=True))
            elif end - same[0][1] + 1 == LONGEST:
                kind, _ = same.popleft()
                self._settled.append(Hindsight(kind, LONGEST, LONGEST, ended=True))
                if not same:
                    del self._open[distance]

    def close(self, end: int) -> None:
        """The text ends at so many tokens, or somebody else writes what comes next."""
        for same in self._open.values():
            for kind, start in same:
                if end > start:
                    self._settled.append(Hindsight(kind, end - start, end - start, ended=False))
        self._open.clear()

    def drain(self) -> Sequence[Hindsight]:
        """What was settled since the last call."""
        found = tuple(self._settled)
        self._settled.clear()
        return found
