"""A proposer that copies what came after the longest end of the text that occurred before.

The automaton of all substrings of the text grows by one token in constant time (Blumer et al.,
"The smallest automaton recognizing the subwords of a text", Theoretical Computer Science 40).
"""

from typing import cast, final

import mlx.core as mx

from speculate import SpeculativeModel
from speculate.protocols import Choose, Commit, Draft


@final
class SuffixAutomaton:
    """Drafts by lookup, with no limit on how long an end is looked for."""

    name = "suffix"

    def __init__(self) -> None:
        self.begin(0)

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, /) -> None:
        self._unseen = position
        self._text: list[int] = []
        # One state for each set of ends; state 0 is the empty end, and the only one to begin with.
        self._next: list[dict[int, int]] = [{}]
        self._shorter, self._length, self._end = [-1], [0], [0]
        self._whole = 0

    def position(self) -> int:
        return self._unseen + len(self._text)

    def commit(self, commit: Commit, /) -> None:
        for token in commit.ids:
            self._append(token)

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        token, state = cast(int, newest.item()), self._whole
        while state >= 0 and token not in self._next[state]:
            state = self._shorter[state]
        start = len(self._text) if state < 0 else self._end[self._next[state][token]]
        return Draft(mx.array(self._text[start : start + limit], dtype=mx.uint32))

    def settle(self) -> None:
        """Has no cache."""

    def _append(self, token: int) -> None:
        self._text.append(token)
        state, self._whole = self._whole, self._add({}, len(self._text), len(self._text))
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = self._whole
            state = self._shorter[state]
        self._shorter[self._whole] = 0 if state < 0 else self._after(state, token)

    def _after(self, state: int, token: int) -> int:
        """The state behind a token, of ends no longer than `state`'s and the token."""
        found, length = self._next[state][token], self._length[state] + 1
        if self._length[found] == length:
            return found
        split = self._add({**self._next[found]}, length, self._end[found])
        self._shorter[split], self._shorter[found] = self._shorter[found], split
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = split
            state = self._shorter[state]
        return split

    def _add(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._shorter.append(0)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1
