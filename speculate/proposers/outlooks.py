"""What lookups that were not made would have been worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, final

from speculate.protocols import Hindsight

LONGEST: Final = 16
"""Tokens of a draft that are foreseen, and compared with the text."""


@final
class Outlooks:
    """Compares the drafts that could have been made with the text that came.

    A copy from `distance` tokens back is right for as long as the text repeats itself at that
    distance. So all that were opened at one distance, as in a long quotation, live and end
    together, and a token is looked at once for each distance that is still open.
    """

    def __init__(self) -> None:
        self._open: dict[int, deque[tuple[int, int]]] = {}  # at each distance: kind, start
        self._found: dict[tuple[int, int], list[int]] = {}  # kind, position: compared, right

    def open(self, kind: int, distance: int, end: int) -> None:
        """A draft could be made now.

        Args:
            kind: See `Outlook`.
            distance: From how many tokens back it copies.
            end: Tokens of the text.
        """
        self._open.setdefault(distance, deque()).append((kind, end))

    def compare(self, text: Sequence[int], token: int) -> None:
        """This id comes next in the text."""
        end = len(text)
        for distance, same in list(self._open.items()):
            right = text[end - distance] == token
            for kind, start in same:
                found = self._found.setdefault((kind, end - start), [0, 0])
                found[0] += 1
                found[1] += right
            if right and end - same[0][1] + 1 == LONGEST:
                same.popleft()
            if not right or not same:
                del self._open[distance]

    def close(self) -> None:
        """The text ends, or somebody else writes what comes next."""
        self._open.clear()

    def drain(self) -> Sequence[Hindsight]:
        """What was found since the last call."""
        found = [Hindsight(*place, *counts) for place, counts in self._found.items()]
        self._found.clear()
        return found
