"""Where each short run of tokens was followed by another one the last time."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.protocols import Choose, Commit, Draft, Hindsight, Outlook, SpeculativeModel
from speculate.validation import validated_integer, validated_optional_integer, validated_text

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


LONGEST: Final = 16
"""Tokens of a draft that are foreseen, and compared with the text."""


@final
class DraftScorer:
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


@final
@attrs.frozen
class Run:
    """Places in a row at which the same distance was found.

    Attributes:
        distance: Tokens; 0 where nothing was found.
        length: Places.
    """

    distance: int = 0
    length: int = 0

    def after(self, match: Match | None) -> Run:
        """With what is found one token on."""
        if match is None:
            return Run()
        return Run(match.distance, self.length + 1 if match.distance == self.distance else 1)


@final
class PromptLookup:
    """Drafts by lookup: finds the end of the text earlier in it, and copies what came then.

    The longest end that occurred before counts, up to `max_ngram` tokens, and of several
    occurrences the newest. A copy that reaches the end of the text goes on with itself, so
    that a text which repeats is continued as often as asked for. Where not even the last
    `min_ngram` tokens occurred before the draft is empty.

    Needs no model and no head, and drafts for any target. Time for a token does not depend
    on the length of the text.

    Args:
        max_ngram: Most tokens to look for.
        min_ngram: Fewest tokens that must agree.
        window: Search the newest tokens of the text only, so many; by default all of it.
        name: Tells it apart from other lookups of the same strategy.

    Raises:
        OptionError: An option cannot be used.
    """

    def __init__(
        self,
        *,
        max_ngram: int = 5,
        min_ngram: int = 2,
        window: int | None = None,
        name: str = "lookup",
    ) -> None:
        fewest = validated_integer("min_ngram", min_ngram, 1)
        most = validated_integer("max_ngram", max_ngram, fewest, note="min_ngram")
        more = "more than min_ngram, to find anything"
        window = validated_optional_integer("window", window, fewest + 1, note=more)
        validated_text("name", name)
        self._name = name
        self._index = NGramIndex(fewest, most, window)
        self._outlooks = DraftScorer()
        self._longest = most
        self._under_way = Run()
        self._unseen = 0
        self._newest: int | None = None

    @property
    def name(self) -> str:
        return self._name

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, /) -> None:
        self._outlooks.close()
        self._index.clear()
        self._under_way = Run()
        self._unseen, self._newest = position, None

    def position(self) -> int:
        return self._unseen + len(self._index.text)

    def look_back(self, ids: Sequence[int], /) -> None:
        self._read(ids)
        self._unseen -= len(ids)

    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) > 1:
            self._read(commit.ids)
        else:
            self._follow(commit.ids)
        self._newest = commit.newest

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        # It was made from a number, so that reading it waits for nothing.
        token = cast(int, newest.item()) if self._newest is None else self._newest
        match = self._index.find(token)
        if match is None:
            return Draft(mx.zeros((0,), dtype=mx.uint32))
        start = len(self._index.text) + 1 - match.distance
        copy = [*self._index.text[start : start + limit], token]
        copy *= -(-limit // len(copy))
        return Draft(mx.array(copy[:limit], dtype=mx.uint32))

    def settle(self) -> None:
        self._newest = None

    def outlook(self) -> Outlook:
        match = self._index.find(self._newest)
        if match is None:
            return Outlook(0, 0)
        run = self._under_way if self._newest is None else self._under_way.after(match)
        return Outlook(self._kind(match, run), LONGEST)

    def hindsight(self) -> Sequence[Hindsight]:
        return self._outlooks.drain()

    def _read(self, ids: Sequence[int]) -> None:
        """Take in what the target did not write."""
        self._outlooks.close()
        self._under_way = Run()
        for token in ids:
            self._index.append(token)

    def _follow(self, ids: Sequence[int]) -> None:
        """Take in what the target wrote, and how well it could have been foreseen."""
        index = self._index
        for token in ids:
            self._outlooks.compare(index.text, token)
            index.append(token)
            match = index.find()
            self._under_way = self._under_way.after(match)
            if match is not None:
                kind = self._kind(match, self._under_way)
                self._outlooks.open(kind, match.distance, len(index.text))

    def _kind(self, match: Match, run: Run) -> int:
        """Tokens that agree; one more where a copy was right for as long as is looked for.

        At first sight a long match says less: behind a change, what follows is often a quotation
        of something else, by chance.
        """
        full = match.length == self._longest and run.length >= self._longest
        return match.length + full
