"""Drafts what followed the last time: in the prompt, or in what was generated since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate.proposers.ngram_index import Match, NGramIndex
from speculate.proposers.outlooks import LONGEST, Outlooks
from speculate.protocols import Choose, Commit, Draft, Hindsight, Outlook, SpeculativeModel
from speculate.validation import validated_integer, validated_optional_integer, validated_text


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
        self._outlooks = Outlooks()
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
