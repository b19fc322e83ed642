"""Prompt lookup: the longest match, the last of several, and a copy that may overlap itself."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import speculate as sp
from speculate._mx import to_ints
from speculate.errors import OptionError
from speculate.proposers import prompt_lookup
from tests.support.brute_force_lookup import Scan, asked, commit_of, generate, no_choice

TEXTS: Final = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=48)
)


@st.composite
def scans(draw: st.DrawFn) -> Scan:
    shortest = draw(st.integers(1, 4))
    longest = draw(st.integers(shortest, 7))
    window = draw(st.none() | st.integers(shortest + 1, 30))
    return Scan(longest, shortest, window)


def lookup(scan: Scan) -> sp.PromptLookup:
    return sp.PromptLookup(max_ngram=scan.longest, min_ngram=scan.shortest, window=scan.window)


def after(text: Sequence[int], limit: int, window: int | None = None) -> list[int]:
    proposer = sp.PromptLookup(window=window)
    if len(text) > 1:
        proposer.commit(commit_of(text[:-1]))
    return asked(proposer, text[-1], limit)


@settings(deadline=None, max_examples=400)
@given(TEXTS, scans(), st.lists(st.integers(1, 6), min_size=48, max_size=48), st.integers(1, 20))
def test_drafts_are_those_of_a_scan(
    text: list[int], scan: Scan, rounds: list[int], limit: int
) -> None:
    proposer, start = lookup(scan), 0
    for count in rounds:
        generate(proposer, text[start : start + count + 1], [count])
        start = min(start + count, len(text))
        if start == len(text):
            break
        assert proposer.position() == start
        assert asked(proposer, text[start], limit) == scan.draft(text[: start + 1], limit)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        pytest.param([1, 2, 3, 9, 8, 1, 2, 3], [9, 8, 1, 2, 3, 9], id="longest match"),
        pytest.param([7, 1, 2, 5, 9, 1, 2, 6, 7, 1, 2], [5, 9, 1, 2, 6, 7], id="not the latest"),
        pytest.param([1, 2, 5, 0, 1, 2, 6, 0, 3, 1, 2], [6, 0, 3, 1, 2, 6], id="latest of two"),
        pytest.param([4, 4, 4], [4, 4, 4, 4, 4, 4], id="one token over and over"),
        pytest.param([0, 0, 0], [0, 0, 0, 0, 0, 0], id="id 0 over and over"),
        pytest.param([1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1, 2], id="a period of two"),
        pytest.param([1, 2, 3, 4], [], id="nothing repeats"),
        pytest.param([1, 2, 3, 2], [], id="one token is too few"),
        pytest.param([5, 5], [], id="the end is no earlier occurrence of itself"),
        pytest.param([5], [], id="one token"),
    ],
)
def test_what_is_found(text: list[int], draft: list[int]) -> None:
    assert after(text, 6) == draft
    assert after(text, 2) == draft[:2]


def test_only_the_window_is_searched() -> None:
    text = [1, 2, 3, 9, 8, 7, 1, 2, 3]
    assert after(text, 2, 9) == [9, 8]
    # Three tokens reach too far back, and then the last two of them still fit.
    assert after(text, 2, 8) == [9, 8]
    assert after(text, 2, 7) == []
    # The last of the longest is out of the window; a shorter one is in it.
    assert after([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1, 7) == [8]


def test_ids_of_any_vocabulary() -> None:
    large = [262_143, 151_935, 2**32 - 2, 65_536]
    assert after([*large, 7, *large], 3) == [7, *large[:2]]
    # What differs in the high bits only is another token.
    assert after([1, 2, 3, 9, 1 + 2**16, 2 + 2**16], 3) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_ngram": 0}, "min_ngram must be an integer of at least 1, got 0"),
        ({"max_ngram": 1}, r"max_ngram must be an integer of at least 2 \(min_ngram\), got 1"),
        (
            {"window": 2},
            r"window must be an integer of at least 3 \(more than min_ngram, .*\), got 2",
        ),
        ({"window": 0}, "window must be an integer of at least 3"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sp.PromptLookup(**options)  # type: ignore[arg-type]


def test_begin_forgets_and_later_tokens_alone_are_known() -> None:
    proposer = sp.PromptLookup()
    proposer.commit(commit_of([1, 2, 3, 4, 1, 2], bonus=3))
    proposer.begin(100)
    assert proposer.position() == 100
    assert asked(proposer, 3, 4) == []
    proposer.commit(commit_of([1, 2, 9]))
    assert proposer.position() == 103
    # Nothing of the other text, whose end was 1, 2, 3: what came there was 4.
    assert asked(proposer, 2, 4) == []
    proposer.commit(commit_of([1]))
    assert asked(proposer, 2, 4) == [9, 1, 2, 9]


def test_a_last_token_that_never_became_text_is_forgotten_with_settle() -> None:
    proposer = sp.PromptLookup()
    proposer.commit(commit_of([1, 2, 5, 1, 3, 6, 1], bonus=2))
    assert asked(proposer, 2, 1) == [5]
    # The target failed, and the caller goes on with another token.
    proposer.settle()
    assert asked(proposer, 3, 1) == [6]
    assert proposer.position() == 7


def test_asking_changes_nothing() -> None:
    proposer, text = sp.PromptLookup(), [1, 2, 3, 1, 2]
    proposer.commit(commit_of(text))
    drafts = [asked(proposer, last_token, 4) for last_token in (3, 9, 3, 2, 3)]
    assert drafts == [Scan().draft([*text, last_token], 4) for last_token in (3, 9, 3, 2, 3)]


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, last_token = sp.PromptLookup(), mx.array([2], dtype=mx.uint32)
    commits = [commit_of([1, 2, 3, 1, 2, 3], bonus=1), commit_of([1], bonus=2, verdict=(2, 0))]

    def refuse(*_: object) -> object:
        raise AssertionError("the host waits")

    for place, name in ((mx, "eval"), (mx.array, "item"), (mx.array, "tolist")):
        monkeypatch.setattr(place, name, refuse)
    for commit in commits:
        proposer.commit(commit)
    draft = proposer.propose(last_token, 3, no_choice)
    assert proposer.forecast().length > 0
    proposer.settle()
    monkeypatch.undo()
    assert to_ints(draft.tokens) == [3, 1, 2]


# Long texts: what is done for a token does not depend on how many came before.


def steps(action: Callable[[], object]) -> int:
    """Lines of this package's proposers that are run."""
    count, folder = 0, str(Path(prompt_lookup.__file__).parent)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(folder) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def bytes_for(action: Callable[[], object]) -> int:
    """Most bytes that are in use at a time, of those that an action asks for."""
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_a_token_of_a_long_text_costs_no_more_than_one_of_a_short_text() -> None:
    rng, proposer = random.Random(0), sp.PromptLookup()
    quoted, last_token = [rng.randrange(40_000) for _ in range(8)], mx.array([9], dtype=mx.uint32)
    seen = []
    proposer.commit(commit_of([*quoted, 9, *(rng.randrange(300) for _ in range(1000))]))
    for fill in (0, 100_000):
        proposer.commit(commit_of([rng.randrange(40_000) for _ in range(fill)] or [0]))
        once = commit_of(quoted, bonus=9, verdict=(7, 7))
        commit = steps(lambda once=once: proposer.commit(once))  # type: ignore[misc]
        propose = steps(lambda: proposer.propose(last_token, 4, no_choice))
        # The occurrence is that far back, and no more of it is copied than asked for.
        assert asked(proposer, 9, 2) != []
        seen.append(
            (commit, propose, bytes_for(lambda: proposer.propose(last_token, 4, no_choice)))
        )
    (short_commit, short_propose, _), (long_commit, long_propose, memory) = seen
    assert long_commit <= short_commit + 8
    assert long_propose <= short_propose + 8 <= 60
    assert memory < 4096


def test_a_long_text_takes_little_memory() -> None:
    rng = random.Random(0)
    text = commit_of([rng.randrange(150_000) for _ in range(50_000)])
    # The worst case: no two n-grams are the same. A megabyte is 20 bytes a token.
    assert bytes_for(lambda: sp.PromptLookup().commit(text)) < 25_000_000
