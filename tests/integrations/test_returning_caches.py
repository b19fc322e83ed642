"""A list for both models comes back whole: closed, broken off, saved, or in another thread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from speculate import SpeculativeModel
from speculate.errors import CacheOnLoanError, OptionError
from speculate.integrations.mlx_lm import Steps, speculative_generate_step
from tests.support import reference
from tests.support.paired_caches import PAIRS, both_caches, check_both, check_on_loan, ids
from tests.support.recording import Broken, GuidedModel, Ticker, WatchedModel

COUNT = 12


def guided(target: str, draft: str, wrong: frozenset[int] = frozenset({9, 12})) -> GuidedModel:
    """A draft that is right about the target's text, but for a few positions."""
    text = [*reference.PROMPT, *reference.truth(target, reference.PROMPT, reference.LONG)]
    return GuidedModel(reference.get(draft).model, text, wrong)


def steps_of(
    target: SpeculativeModel,
    draft: SpeculativeModel,
    caches: list[object],
    count: int = COUNT,
    prompt: Sequence[int] = reference.PROMPT,
) -> Steps:
    return speculative_generate_step(
        mx.array(list(prompt)),
        target,
        draft,
        num_draft_tokens=4,
        max_tokens=count,
        prompt_cache=caches,
    )


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_closed_after_any_token(target: str, draft: str) -> None:
    for taken in range(COUNT):
        caches = both_caches(target, draft)
        steps = steps_of(reference.get(target).model, guided(target, draft), caches)
        found = [next(steps)[0] for _ in range(taken)]
        if taken:
            check_on_loan(caches)
            with pytest.raises(CacheOnLoanError):
                next(steps_of(reference.get(target).model, guided(target, draft), caches))
        steps.close()
        text = [*reference.PROMPT, *found] if taken else []
        assert found == reference.truth(target, reference.PROMPT, taken)
        check_both(target, draft, caches, text)


def broken_at(
    place: str, at: int, target: str, draft: str
) -> tuple[list[int], list[object], Ticker]:
    """A run that fails at the given call, if it makes so many: its tokens and the list."""
    ticker = Ticker(place, at)
    caches = both_caches(target, draft)
    steps = steps_of(
        WatchedModel(reference.get(target).model, ticker, "target"),
        WatchedModel(guided(target, draft), ticker, "draft"),
        caches,
    )
    found: list[int] = []
    with contextlib.suppress(Broken):
        found.extend(token for token, _, _ in steps)
    return found, caches, ticker


@pytest.mark.parametrize("case", reference.sampled(product(PAIRS, ("draft", "draft done")), 5))
def test_a_draft_that_fails_loses_nothing_of_the_target(case: tuple[tuple[str, str], str]) -> None:
    (target, draft), place = case
    count = len(reference.stock_caches(target))
    for at in range(1, 100):
        found, caches, ticker = broken_at(place, at, target, draft)
        text = [*reference.PROMPT, *found]
        assert found == reference.truth(target, reference.PROMPT, len(found))
        reference.check_holds(target, caches[:count], text)
        assert is_beginning(draft, caches[count:], text)
        if ticker.calls[place] < at:
            break
        more = ids(
            steps_of(
                reference.get(target).model, reference.get(draft).model, caches, 3, reference.SECOND
            )
        )
        assert more == reference.truth(target, [*text, *reference.SECOND], 3)
    assert at > 5


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_target_that_fails_leaves_no_more_than_the_text(target: str, draft: str) -> None:
    count = len(reference.stock_caches(target))
    for at in range(1, 100):
        found, caches, ticker = broken_at("target", at, target, draft)
        text = [*reference.PROMPT, *found]
        assert is_beginning(target, caches[:count], text)
        assert is_beginning(draft, caches[count:], text)
        if ticker.calls["target"] < at:
            break
    assert at > 3


def is_beginning(name: str, caches: list[object], text: list[int]) -> bool:
    """Whether caches hold the beginning of a text, possibly all of it."""
    for length in range(len(text), -1, -1):
        with contextlib.suppress(AssertionError):
            reference.check_holds(name, caches, text[:length])
            return True
    return False


@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize(("target", "draft"), [("qwen3_5", "small_dense"), ("dense", "qwen3_5")])
def test_a_prefill_that_fails_takes_nothing_in(target: str, draft: str, at: int) -> None:
    """Also where the draft model has taken in much of the prompt by then."""
    prompt = reference.text_of(400)
    caches = both_caches(target, draft)
    text = [
        *reference.PROMPT,
        *ids(steps_of(reference.get(target).model, reference.get(draft).model, caches, 2)),
    ]
    ticker = Ticker("target", at)
    steps = speculative_generate_step(
        mx.array(prompt),
        WatchedModel(reference.get(target).model, ticker, "target"),
        reference.get(draft).model,
        prefill_step_size=70,
        prompt_cache=caches,
    )
    with pytest.raises(Broken):
        next(steps)
    check_both(target, draft, caches, text)


@pytest.mark.parametrize(("target", "draft"), [("gpt_oss", "qwen3_5"), ("qwen3_next", "gpt_oss")])
def test_saved_by_mlx_lm_and_loaded_again(target: str, draft: str, tmp_path: Path) -> None:
    caches = both_caches(target, draft)
    found = ids(steps_of(reference.get(target).model, reference.get(draft).model, caches, 9))
    save_prompt_cache(str(tmp_path / "both.safetensors"), caches)
    loaded = load_prompt_cache(str(tmp_path / "both.safetensors"))
    check_both(target, draft, loaded, [*reference.PROMPT, *found])
    more = ids(
        steps_of(
            reference.get(target).model, reference.get(draft).model, loaded, 3, reference.SECOND
        )
    )
    assert more == reference.truth(target, [*reference.PROMPT, *found, *reference.SECOND], 3)


@pytest.mark.parametrize(("target", "draft"), [("qwen3_5", "small_dense"), ("gpt_oss", "gpt_oss")])
def test_one_thread_begins_another_closes_a_third_goes_on(target: str, draft: str) -> None:
    model, drafter = reference.get(target).model, reference.get(draft).model
    caches = both_caches(target, draft)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        steps = steps_of(model, drafter, caches)
        first = one.submit(lambda: [next(steps) for _ in range(3)]).result()
        scores = two.submit(lambda: [row.max().item() for _, row, _ in first]).result()
        assert all(isinstance(score, float) and score <= 0 for score in scores)
        two.submit(steps.close).result()
        again = steps_of(model, drafter, caches, 3, reference.SECOND)
        found = three.submit(lambda: ids(again)).result()
    text = [*reference.PROMPT, *ids(first)]
    assert found == reference.truth(target, [*text, *reference.SECOND], 3)
    check_both(target, draft, caches, [*text, *reference.SECOND, *found])


def test_a_generator_that_never_ran_took_nothing() -> None:
    caches = both_caches("qwen3_5", "small_dense")
    before = list(caches)
    steps_of(reference.get("qwen3_5").model, reference.get("small_dense").model, caches).close()
    assert caches == before


def test_target_and_draft_share_no_cache() -> None:
    caches = both_caches("dense", "small_dense")
    caches[-1] = caches[1]
    kept = list(caches)
    with pytest.raises(OptionError, match="layer 1 and layer 3 share one KVCache"):
        list(steps_of(reference.get("dense").model, reference.get("small_dense").model, caches))
    assert all(a is b for a, b in zip(caches, kept, strict=True))
