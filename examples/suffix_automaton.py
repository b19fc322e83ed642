"""A proposer that copies what followed the earlier occurrence of the longest repeated suffix.

The automaton of all substrings of the sequence grows by one token in amortised constant time
(Blumer et al., "The smallest automaton recognizing the subwords of a text", Theoretical Computer
Science 40).
"""

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx

from speculate import SpeculativeModel
from speculate.protocols import Commit, Draft, DraftSampler


@final
class SuffixAutomaton:
    """Drafts by lookup, with no limit on the length of the suffix."""

    name = "suffix"

    def __init__(self) -> None:
        self.begin(0)

    def attach(self, target: SpeculativeModel, /) -> None:
        """Do nothing: it drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._skipped = position
        self._ids: list[int] = []
        # One state for each set of end positions; state 0 is the empty suffix, the initial state.
        self._next: list[dict[int, int]] = [{}]
        self._shorter, self._length, self._end = [-1], [0], [0]
        self._whole = 0

    def position(self) -> int:
        return self._skipped + len(self._ids)

    def commit(self, commit: Commit, /) -> None:
        for token in commit.ids:
            self._append(token)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        token, state = cast(int, last_token.item()), self._whole
        while state >= 0 and token not in self._next[state]:
            state = self._shorter[state]
        start = len(self._ids) if state < 0 else self._end[self._next[state][token]]
        return Draft(mx.array(self._ids[start : start + limit], dtype=mx.uint32))

    def settle(self) -> None:
        """Do nothing: there is no cache."""

    def _append(self, token: int) -> None:
        self._ids.append(token)
        state, self._whole = self._whole, self._add({}, len(self._ids), len(self._ids))
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = self._whole
            state = self._shorter[state]
        self._shorter[self._whole] = 0 if state < 0 else self._after(state, token)

    def _after(self, state: int, token: int) -> int:
        """Return the state after a token, for suffixes no longer than `state`'s and the token."""
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
