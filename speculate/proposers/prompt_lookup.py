"""Drafts by prompt lookup: an n-gram index, and the scores of drafts that were not made."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.protocols import Commit, Draft, DraftSampler, DraftScore, Forecast, SpeculativeModel
from speculate.validation import validated_integer, validated_optional_integer, validated_text

FORECAST_TOKENS: Final = 16
"""Tokens of a draft that are forecast and scored."""


@final
@attrs.frozen
class Match:
    """An earlier occurrence of the last `length` tokens, `distance` tokens before them."""

    length: int
    distance: int


@final
class NGramIndex:
    """A sequence, `ids`, and for each of its n-grams the position after the last occurrence.

    An n-gram is added together with the token that follows it, so the end of the sequence is
    not among the occurrences, and every occurrence has a continuation. A token adds one entry
    per n-gram length, from `shortest` to `longest`, however long the sequence is. An occurrence
    counts only within the last `window` tokens; `None` for the whole sequence.
    """

    def __init__(self, shortest: int, longest: int, window: int | None) -> None:
        self.ids: array[int] = array("I")
        self._window = math.inf if window is None else window
        # An n-gram is one integer of 32 bits an id, its last token in the lowest bits.
        self._tables: list[tuple[int, int, dict[int, int]]] = [
            (length, (1 << 32 * length) - 1, {}) for length in range(longest, shortest - 1, -1)
        ]
        self._widest = self._tables[0][1]
        # The longest n-gram at the end. All bits, which no id has, for tokens before the first.
        self._ending = self._widest

    def append(self, token: int) -> None:
        """Append an id to the sequence."""
        position = len(self.ids)
        for _, mask, positions in self._tables:
            positions[self._ending & mask] = position
        self.ids.append(token)
        self._ending = self._ending_with(token)

    def find(self, last_token: int | None = None) -> Match | None:
        """The most recent among the longest earlier occurrences of the end of the sequence.

        `last_token` is treated as if it were appended.
        """
        end, ending = len(self.ids), self._ending
        if last_token is not None:
            end, ending = end + 1, self._ending_with(last_token)
        for length, mask, positions in self._tables:
            position = positions.get(ending & mask)
            # The n-gram that `last_token` itself follows is not in the index yet.
            if last_token is not None and not (ending ^ self._ending) & mask:
                position = end - 1
            if position is not None and end - position + length <= self._window:
                return Match(length, end - position)
        return None

    def _ending_with(self, token: int) -> int:
        return (self._ending << 32 | token) & self._widest


@final
class DraftScorer:
    """Compares the drafts that could have been made with the tokens that followed.

    A copy from `distance` tokens back is right for as long as the sequence repeats itself at
    that distance. All drafts opened at one distance, as in a long quotation, therefore end
    together, and each token is compared once per open distance.
    """

    def __init__(self) -> None:
        self._open: dict[int, deque[tuple[int, int]]] = {}  # distance -> (bucket, start)
        self._scores: dict[tuple[int, int], list[int]] = {}  # (bucket, position) -> compared, right

    def open(self, bucket: int, distance: int, end: int) -> None:
        """Start scoring a draft at `end` that copies from `distance` tokens back."""
        self._open.setdefault(distance, deque()).append((bucket, end))

    def observe(self, ids: Sequence[int], token: int) -> None:
        """Compare all open drafts with `token`, which follows the sequence `ids`."""
        end = len(ids)
        for distance, drafts in list(self._open.items()):
            right = ids[end - distance] == token
            for bucket, start in drafts:
                score = self._scores.setdefault((bucket, end - start), [0, 0])
                score[0] += 1
                score[1] += right
            if right and end - drafts[0][1] + 1 == FORECAST_TOKENS:
                drafts.popleft()
            if not right or not drafts:
                del self._open[distance]

    def reset(self) -> None:
        """Drop all open drafts: the next tokens are not the target's, or of another sequence."""
        self._open.clear()

    def drain(self) -> Sequence[DraftScore]:
        """Return the scores since the last call."""
        scores = [DraftScore(*place, *counts) for place, counts in self._scores.items()]
        self._scores.clear()
        return scores


@final
@attrs.frozen
class CopyRun:
    """`length` consecutive positions with a match at the same `distance`; 0 without a match."""

    distance: int = 0
    length: int = 0

    def after(self, match: Match | None) -> CopyRun:
        """The run one token later, given the match there."""
        if match is None:
            return CopyRun()
        return CopyRun(match.distance, self.length + 1 if match.distance == self.distance else 1)


@final
class PromptLookup:
    """Drafts by lookup: finds an earlier occurrence of the last tokens, and copies what followed.

    The longest match counts, up to `max_ngram` tokens, and the most recent one among several;
    without one of `min_ngram` tokens the draft is empty. A copy that reaches the end of the
    sequence continues with itself, so that a repetition is drafted to any depth.

    Needs no model and no head. The time per token does not depend on the length of the sequence.

    Args:
        max_ngram: Most tokens to match.
        min_ngram: Fewest tokens to match.
        window: Number of tokens at the end of the sequence to search; by default all.
        name: Distinguishes it from other lookups of the same strategy.

    Raises:
        OptionError: An option is invalid.
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
        self._ngrams = fewest, most
        self._window = window
        self._scorer = DraftScorer()
        self.begin(0)

    def __repr__(self) -> str:
        fewest, most = self._ngrams
        window = "" if self._window is None else f", window {self._window}"
        return (
            f"<PromptLookup '{self._name}': n-grams of {fewest} to {most} tokens{window}, "
            f"position {self.position()}>"
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def free(self) -> bool:
        """True: a draft is a lookup on the host."""
        return True

    def attach(self, target: SpeculativeModel, /) -> None:
        """Does nothing: it drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._index = NGramIndex(*self._ngrams, self._window)
        self._skipped = position - len(history)
        self._last_token: int | None = None
        self._index_prompt(history)

    def position(self) -> int:
        return self._skipped + len(self._index.ids)

    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) > 1:
            self._index_prompt(commit.ids)
        else:
            for token in commit.ids:
                self._index_output(token)
        self._last_token = commit.bonus

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        # The array was made from a number, so that reading it does not wait for the device.
        token = cast(int, last_token.item()) if self._last_token is None else self._last_token
        match = self._index.find(token)
        if match is None:
            return Draft(mx.zeros((0,), dtype=mx.uint32))
        start = len(self._index.ids) + 1 - match.distance
        copy = [*self._index.ids[start : start + limit], token]
        copy *= -(-limit // len(copy))
        return Draft(mx.array(copy[:limit], dtype=mx.uint32))

    def settle(self) -> None:
        self._last_token = None

    def forecast(self) -> Forecast:
        match = self._index.find(self._last_token)
        if match is None:
            return Forecast(0, 0)
        run = self._copy_run if self._last_token is None else self._copy_run.after(match)
        return Forecast(self._bucket(match, run), FORECAST_TOKENS)

    def scores(self) -> Sequence[DraftScore]:
        return self._scorer.drain()

    def _index_prompt(self, ids: Sequence[int]) -> None:
        """Add tokens that the target did not generate, without scoring drafts of them."""
        self._scorer.reset()
        self._copy_run = CopyRun()
        for token in ids:
            self._index.append(token)

    def _index_output(self, token: int) -> None:
        """Add a generated token, and score the drafts that would have been made of it."""
        self._scorer.observe(self._index.ids, token)
        self._index.append(token)
        match = self._index.find()
        self._copy_run = self._copy_run.after(match)
        if match is not None:
            bucket = self._bucket(match, self._copy_run)
            self._scorer.open(bucket, match.distance, len(self._index.ids))

    def _bucket(self, match: Match, run: CopyRun) -> int:
        """The length of the match, plus one if the copy was right for `max_ngram` tokens.

        A long match that was only just found says less: after an edit, the following tokens
        often match some other passage by chance.
        """
        longest = self._ngrams[1]
        full = match.length == longest and run.length >= longest
        return match.length + full
