"""A list for both models comes back whole: closed, broken off, saved, or in another thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from speculate.errors import CacheOnLoanError
from speculate.integrations.mlx_lm import Steps, speculative_generate_step
from speculate.protocols import SpeculativeModel
from tests.decoding import kit
from tests.decoding.watched import Broken, GuidedModel, Ticker, WatchedModel
from tests.integrations.steps import PAIRS, both_caches, check_both, check_on_loan, ids

PROMPT = mx.array(kit.PROMPT)
COUNT = 12


def guided(target: str, draft: str, wrong: frozenset[int] = frozenset({9, 12})) -> GuidedModel:
    """A draft that is right about the target's text, but for a few positions."""
    text = [*kit.PROMPT, *kit.truth(target, kit.PROMPT, kit.LONG)]
    return GuidedModel(kit.get(draft).model, text, wrong)


def steps_of(
    target: SpeculativeModel, draft: SpeculativeModel, caches: list[object], count: int = COUNT
) -> Steps:
    return speculative_generate_step(
        PROMPT, target, draft, num_draft_tokens=4, max_tokens=count, prompt_cache=caches
    )


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_closed_after_any_token(target: str, draft: str) -> None:
    for taken in range(COUNT):
        caches = both_caches(target, draft)
        steps = steps_of(kit.get(target).model, guided(target, draft), caches)
        found = [next(steps)[0] for _ in range(taken)]
        if taken:
            check_on_loan(caches)
            with pytest.raises(CacheOnLoanError):
                next(steps_of(kit.get(target).model, guided(target, draft), caches))
        steps.close()
        text = [*kit.PROMPT, *found] if taken else []
        assert found == kit.truth(target, kit.PROMPT, taken)
        check_both(target, draft, caches, text)


def failing(target: str, draft: str, place: str) -> Iterator[tuple[Steps, list[object]]]:
    """Runs in which the first, the second, ... forward at a place fails, until none does."""
    at = 1
    while True:
        ticker = Ticker(place, at)
        caches = both_caches(target, draft)
        watched = WatchedModel(kit.get(target).model, ticker, "target")
        drafter = WatchedModel(guided(target, draft), ticker, "draft")
        yield steps_of(watched, drafter, caches), caches
        if ticker.calls[place] < at:
            return
        at += 1


@pytest.mark.parametrize("place", ["draft", "draft done"])
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_draft_that_fails_loses_nothing_of_the_target(
    target: str, draft: str, place: str
) -> None:
    count = len(kit.stock_caches(target))
    failures = 0
    for steps, caches in failing(target, draft, place):
        found: list[int] = []
        try:
            found += [token for token, _, _ in steps_until_broken(steps, found)]
        except Broken:
            failures += 1
        text = [*kit.PROMPT, *found]
        kit.check_holds(target, caches[:count], text)
        behind = drafted_text(draft, caches[count:], text)
        retry = steps_of(kit.get(target).model, kit.get(draft).model, caches[:count], 3)
        retry.close()
        assert behind <= len(text)
    assert failures > 3


def steps_until_broken(steps: Steps, found: list[int]) -> Iterator[tuple[int, mx.array, bool]]:
    for step in steps:
        found.append(step[0])
        yield step
    found.clear()


def drafted_text(draft: str, caches: list[object], text: list[int]) -> int:
    """How much of a text a draft model's caches hold, which is a beginning of it."""
    for length in range(len(text), -1, -1):
        fresh = kit.cold(draft, tuple(text[:length]))[1] if length else kit.stock_caches(draft)
        try:
            kit.same_content(caches, fresh)
        except AssertionError:
            continue
        return length
    raise AssertionError("the draft model's caches hold something else")
