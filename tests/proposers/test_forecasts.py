"""What a lookup says of drafts that it was not asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import speculate as sp
from speculate import MTPChain
from speculate.protocols import DraftScore, Forecast, Plan, Proposer, Round, SupportsForecast
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.brute_force_lookup import FORECAST, Scan, asked, commit_of, generate
from tests.support.mtp_heads import with_head

TEXTS: Final = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=3, max_size=70)
)
ROUNDS: Final = st.lists(st.integers(1, 9), min_size=1, max_size=20)


def counted(some: Sequence[DraftScore]) -> Counter[tuple[int, int, bool]]:
    """By kind, position, and whether the token was right."""
    counts = Counter[tuple[int, int, bool]]()
    for one in some:
        counts[one.bucket, one.position, True] += one.right
        counts[one.bucket, one.position, False] += one.compared - one.right
    return +counts


def after(prompt: Sequence[int]) -> sp.PromptLookup:
    """A lookup that has heard a prompt: all but its last token, as a decoder tells it."""
    proposer = sp.PromptLookup()
    proposer.commit(commit_of(prompt[:-1]))
    return proposer


def test_a_lookup_forecasts_and_a_head_does_not() -> None:
    assert isinstance(sp.PromptLookup(), SupportsForecast)
    assert not isinstance(MTPChain(), SupportsForecast)


@settings(deadline=None, max_examples=300)
@given(TEXTS, ROUNDS)
def test_every_place_is_scored_however_the_text_came(text: list[int], rounds: list[int]) -> None:
    prompt, committed = text[:3], 2 + sum(rounds)
    proposer = after(prompt)
    generate(proposer, text[2:], rounds)
    known = text[: min(committed, len(text))]
    assert counted(proposer.scores()) == Scan().scores(known, 3)
    assert not proposer.scores()


@settings(deadline=None, max_examples=100)
@given(TEXTS)
def test_it_does_not_matter_when_it_is_asked(text: list[int]) -> None:
    proposer, found = after(text[:3]), Counter[tuple[int, int, bool]]()
    for place in range(2, len(text) - 1):
        proposer.commit(commit_of(text[place : place + 1], text[place + 1], (1, 0)))
        found += counted(proposer.scores())
    assert found == Scan().scores(text[:-1], 3)


@settings(deadline=None, max_examples=200)
@given(TEXTS, ROUNDS, st.integers(1, 9))
def test_the_forecast_is_of_the_draft_that_would_be_made(
    text: list[int], rounds: list[int], last: int
) -> None:
    proposer = after(text[:3])
    generate(proposer, text[2:], [*rounds, last])
    end = proposer.position()
    if end == len(text):
        return
    known = text[: end + (last > 1)]
    kind, draft = Scan().kind(known, 3), Scan().draft(known, FORECAST)
    assert proposer.forecast() == Forecast(kind, len(draft))
    if last > 1:
        assert asked(proposer, known[-1], FORECAST) == draft


def test_a_long_quotation() -> None:
    proposer, text = after([*range(30), 90]), [90, 3, 4, *range(5, 25), 91]
    generate(proposer, text, [3] * 8)
    found = counted(proposer.scores())
    # Drafts after 3, 4 and each of the next places; the last one's first token is wrong.
    assert found[2, 0, True] == found[3, 0, True] == found[4, 0, True] == 1
    # From the fifth place in a row on, the copy is under way.
    assert found[5, 0, True] == 1
    assert found[6, 0, True] == 16
    assert found[6, 0, False] == 1
    # Two of these were right at full length, one of every other length was not.
    assert found[5, 15, True] == found[6, 15, True] == 1
    assert [found[6, position, False] for position in range(16)] == [1] * 16


def test_a_quotation_of_which_the_newer_copy_lacks_the_beginning() -> None:
    rest = list(range(10, 40))
    prompt = [1, 2, 3, 4, 5, *rest, 99, 2, 3, 4, 5, *rest, 98]
    text = [*prompt, 1, 2, 3, 4, 5, *rest, 97]
    proposer = after(prompt)
    generate(proposer, text[len(prompt) - 1 :], [4] * 10)
    # Each draft after 1 copies from the first, and each one later on from the second.
    wanted = Scan().scores(text, len(prompt))
    assert counted(proposer.scores()) == wanted
    assert [wanted[kind, FORECAST - 1, True] for kind in (2, 3, 4)] == [1, 1, 1]


def test_prompts_are_searched_and_not_scored() -> None:
    proposer = after([1, 2, 3, 4] * 8)
    assert not proposer.scores()
    assert proposer.forecast() == Forecast(5, FORECAST)
    generate(proposer, [4, 1, 2], [2])
    assert counted(proposer.scores()) == {(5, 0, True): 1}
    # The next turn: how the sequence would have continued is unknown.
    proposer.commit(commit_of([7, 7, 7]))
    assert not proposer.scores()
    generate(proposer, [7, 8], [1, 1])
    assert proposer.scores() == [DraftScore(3, 0, 1, 0)]


def test_what_is_not_asked_for_does_not_grow() -> None:
    proposer = after([1, 2, 1, 2])
    generate(proposer, [1, 2] * 1000, [1] * 2000)
    kinds = range(2, 7)
    assert len(proposer.scores()) <= len(kinds) * FORECAST


def test_begin_forgets_the_text_and_keeps_what_it_taught() -> None:
    proposer = after([1, 2, 5, 1, 2])
    generate(proposer, [2, 6], [1, 1])
    proposer.begin(0)
    assert proposer.forecast() == Forecast(0, 0)
    assert proposer.scores() == [DraftScore(2, 0, 1, 0)]
    proposer.commit(commit_of([5, 1, 2]))
    assert proposer.forecast() == Forecast(0, 0)
    # A draft that was right so far ends with its text.
    generate(proposer, [7, 1, 2, 7], [4])
    assert proposer.scores() == [DraftScore(2, 0, 1, 1)]
    proposer.begin(0)
    generate(proposer, [1, 1], [1, 1])
    assert not proposer.scores()


# In runs.


@pytest.mark.parametrize("plan", ["m3", "m0", "l4", "m1 l2 m0 m0", "l16"])
def test_scores_are_the_same_with_any_proposer(plan: str) -> None:
    name = "qwen3_5"
    prompt = (*reference.PROMPT, *reference.truth(name, reference.PROMPT, 20), *reference.PROMPT)
    lookup = sp.PromptLookup(max_ngram=3, min_ngram=1)
    who: dict[str, Proposer] = {"m": MTPChain(), "l": lookup}
    steps = [(who[step[0]], int(step[1:])) for step in plan.split()]
    decoder = sp.Decoder(with_head(name).model, ScheduledStrategy([*steps, (lookup, 0)]))
    text = [*prompt, *reference.ids_of(decoder.generate(prompt, 40))]
    lookup.begin(0)
    scan = Scan(longest=3, shortest=1)
    found = lookup.scores()
    assert counted(found) == scan.scores(text, len(prompt))
    assert 0 < sum(one.right for one in found) < sum(one.compared for one in found)


class Asking:
    """Asks for the forecast before each round, and drafts where it promises something."""

    def __init__(self, proposer: sp.PromptLookup) -> None:
        self._proposer = proposer
        self.promised: list[int] = []
        self.found: list[DraftScore] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self._proposer,)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        self.promised.append(self._proposer.forecast().length)
        return Plan(self._proposer, 4) if self.promised[-1] else Plan()

    def observe(self, round: Round, /) -> None:
        self.found += self._proposer.scores()


def test_a_strategy_can_ask_in_the_middle_of_a_run() -> None:
    name = "dense"
    prompt = (*reference.PROMPT, *reference.truth(name, reference.PROMPT, 20), *reference.PROMPT)
    strategy = Asking(sp.PromptLookup())
    decoder = sp.Decoder(reference.get(name).model, strategy)
    reference.check_tokens(name, prompt, list(decoder.generate(prompt, 40)))
    assert set(strategy.promised) == {0, FORECAST}
    assert 0 < decoder.stats.drafts < decoder.stats.rounds
    assert strategy.found
