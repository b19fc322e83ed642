"""What a lookup ought to find, by reading the whole text for each question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.protocols import Commit, DraftToken, Proposer, Verdict
from tests.support.recording import WatchedProposer

FORECAST: Final = 16


@attrs.frozen
class Scan:
    """A lookup with these options."""

    longest: int = 5
    shortest: int = 2
    window: int | None = None

    def match(self, text: Sequence[int]) -> tuple[int, int]:
        """Length of the match, and where its continuation begins; 0 and the end for none."""
        end = len(text)
        first = 0 if self.window is None else max(0, end - self.window)
        for length in range(self.longest, self.shortest - 1, -1):
            for start in range(end - length - 1, first - 1, -1):
                if text[start : start + length] == text[end - length :]:
                    return length, start + length
        return 0, end

    def kind(self, text: Sequence[int], start: int) -> int:
        """Length of the match; one more where the last places all copy from as far back.

        Args:
            text: Up to the place.
            start: Tokens before the first place.
        """
        length, place = self.match(text)
        places = range(len(text) - self.longest + 1, len(text))
        if length < self.longest or places.start < start:
            return length
        matches = [(end, self.match(text[:end])) for end in places]
        distances = {end - place if found else 0 for end, (found, place) in matches}
        return length + (distances == {len(text) - place})

    def draft(self, text: Sequence[int], limit: int) -> list[int]:
        """The continuation, copied token by token, past the end of the text too."""
        copied = list(text)
        length, place = self.match(text)
        for _ in range(limit if length else 0):
            copied.append(copied[place])
            place += 1
        return copied[len(text) :]

    def scores(self, text: Sequence[int], start: int) -> Counter[tuple[int, int, bool]]:
        """How often drafts were right and wrong: by kind, position, and whether.

        Args:
            text: All of it.
            start: Tokens before the first place.
        """
        found = Counter[tuple[int, int, bool]]()
        for place in range(start, len(text)):
            kind, draft = self.kind(text[:place], start), self.draft(text[:place], FORECAST)
            for position, (guess, token) in enumerate(zip(draft, text[place:], strict=False)):
                found[kind, position, guess == token] += 1
                if guess != token:
                    break
        return found


def no_choice(_: mx.array, __: int) -> DraftToken:
    raise AssertionError("a lookup has no logits")


def commit_of(
    ids: Sequence[int], bonus: int | None = None, verdict: tuple[int, int] | None = None
) -> Commit:
    """A commit as a decoder makes it."""
    hidden = mx.zeros((1, len(ids), 1))
    said = None if verdict is None else Verdict("somebody", *verdict)
    return Commit(mx.array(list(ids), dtype=mx.uint32), hidden, said, ids, bonus)


def generate(proposer: Proposer, text: Sequence[int], rounds: Iterable[int]) -> None:
    """Tell text that came in rounds of so many tokens, until it or the rounds are used up.

    A round of one token is launched as lookahead: the last token is not known.
    """
    start = 0
    for count in rounds:
        ids = list(text[start : start + count])
        start += len(ids)
        known = count > 1 and start < len(text)
        verdict = (count, len(ids) - 1) if count > 1 else None
        if ids:
            proposer.commit(commit_of(ids, text[start] if known else None, verdict))


def asked(proposer: Proposer, last_token: int, limit: int) -> list[int]:
    """Its draft after a token."""
    return to_ints(
        proposer.propose(mx.array([last_token], dtype=mx.uint32), limit, no_choice).tokens
    )


def check_lookup(
    scan: Scan, text: Sequence[int], watched: WatchedProposer, limits: Sequence[int], start: int = 0
) -> None:
    """Every draft is what a scan of the sequence finds, without its first `start` tokens."""
    assert watched.drafts
    for length, last_token, ids in watched.drafts:
        seen = [*text[start:length], last_token]
        assert seen == list(text[start : length + 1])
        assert ids in [scan.draft(seen, limit) for limit in limits]
