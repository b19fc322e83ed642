"""Taking back more than is possible is an error, and changes nothing anywhere."""

from __future__ import annotations

import copy

import mlx.core as mx
import pytest
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from tests.support.cache_contents import (
    CUT_ANYWHERE,
    HYBRIDS,
    assert_equal,
    assert_same,
    batch,
    cold,
    feed,
    holding,
    ids,
    model,
    refused,
    speculate_all,
    stock,
    trim_all,
)


@pytest.mark.parametrize("family", [*HYBRIDS, "lfm2"])
def test_a_hybrid_that_records_nothing_is_trimmed_in_no_layer(family: str) -> None:
    """A generic caller, as prefix reuse is, must not trim attention and wipe the state."""
    caches = cold(model(family), ids(9))[1]
    before = holding(caches)
    assert not can_trim_prompt_cache(list(caches))
    taken: object = trim_prompt_cache(list(caches), 2)
    assert taken == 0
    assert_same(holding(caches), before, "trim_prompt_cache")
    for layer in caches:
        assert refused(layer.trim, 2)
        assert_same(holding(caches), before, "trim of one layer")
    assert_equal(feed(model(family), caches, [5])[-1], cold(model(family), [*ids(9), 5])[0][-1], "")


@pytest.mark.parametrize("family", ["dense", "gpt_oss"])
def test_rows_are_trimmed_without_speculation_while_all_are_there(family: str) -> None:
    caches = cold(model(family), ids(7))[1]
    trim_all(caches, 3)
    assert_same(holding(caches), holding(cold(model(family), ids(4))[1]), "after 3")
    assert refused(trim_prompt_cache, list(caches), 5)
    assert [layer.length() for layer in caches] == [4] * len(caches)


@pytest.mark.parametrize("family", CUT_ANYWHERE)
def test_what_can_be_trimmed_is_known_before(family: str) -> None:
    caches = cold(model(family), ids(9))[1]
    speculate_all(caches)
    feed(model(family), caches, ids(5, seed=2))
    for layer in caches:
        assert [n for n in range(-2, 7) if layer.can_trim(n)][:6] == [0, 1, 2, 3, 4, 5]
        assert not layer.can_trim(-1)
        assert not layer.can_trim(10_000)
        assert layer.trim(0) == 0


@pytest.mark.parametrize("family", HYBRIDS)
def test_starting_and_stopping_drop_the_records(family: str) -> None:
    caches = cold(model(family), ids(9))[1]
    for again in (False, True):
        speculate_all(caches)
        feed(model(family), caches, ids(3, seed=2))
        for layer in caches:
            layer.stop_speculation()
            if again:
                layer.start_speculation()
        before = holding(caches)
        assert all(refused(caches[-1].trim, n) for n in (1, 3))
        assert_same(holding(caches), before, "refused")
        speculate_all(caches)
        feed(model(family), caches, ids(2, seed=3))
        trim_all(caches, 2)
        assert_same(holding(caches), before, "recorded again")


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss"])
@pytest.mark.parametrize("width", [1, 9])
def test_at_least_64_tokens_can_be_trimmed(family: str, width: int) -> None:
    text, fed = ids(12), ids(99, seed=2)
    caches = cold(model(family), text)[1]
    speculate_all(caches)
    for start in range(0, len(fed), width):
        feed(model(family), caches, fed[start : start + width])
    trim_all(caches, 64)
    fresh = cold(model(family), [*text, *fed[: len(fed) - 64]])[1]
    assert_same(holding(caches), holding(fresh), "64 trimmed")
    assert_equal(feed(model(family), caches, [5]), feed(model(family), fresh, [5]), "going on")


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_stock_layer_that_recorded_nothing_puts_older_records_out_of_reach(family: str) -> None:
    caches = cold(model(family), ids(9))[1]
    speculate_all(caches)
    feed(model(family), caches, ids(3, seed=2))
    mx.eval(stock(family)(batch(ids(2, seed=3)), cache=caches))
    before = holding(caches)
    assert before.lengths == [14] * len(caches)
    for n in (1, 2, 3, 5):
        assert refused(trim_prompt_cache, list(caches), n)
        assert_same(holding(caches), before, f"refused {n}")
    feed(model(family), caches, ids(4, seed=4))
    for n in (5, 6, 9):
        assert refused(trim_prompt_cache, list(caches), n)
    trim_all(caches, 4)
    assert_same(holding(caches), before, "what was recorded afterwards")


def test_blocks_of_a_layer_that_records_nothing_are_trimmed_whole() -> None:
    caches = cold(model("lfm2"), ids(9))[1]
    lengths = [9]
    held = [holding(caches)]
    speculate_all(caches)
    for width in (3, 1, 4):
        feed(model("lfm2"), caches, ids(width, seed=width))
        held.append(holding(caches))
        lengths.append(lengths[-1] + width)
    for n in (1, 2, 3, 6, 7, 9):
        assert refused(trim_prompt_cache, list(caches), n)
        assert_same(holding(caches), held[-1], f"refused {n}")
    trim_all(caches, 5)
    assert_same(holding(caches), held[1], "two blocks")
    trim_all(caches, 3)
    assert_same(holding(caches), held[0], "all blocks")


@pytest.mark.parametrize("family", ["dense", *HYBRIDS, "gpt_oss"])
def test_a_copy_of_a_list_is_a_group_of_its_own(family: str) -> None:
    """mlx-lm's own prompt store copies lists deeply, and trims the copy."""
    caches = cold(model(family), ids(9))[1]
    speculate_all(caches)
    feed(model(family), caches, ids(3, seed=2))
    before, twin = holding(caches), copy.deepcopy(caches)
    trim_all(twin, 3)
    assert_same(holding(caches), before, "the original")
    assert_same(holding(twin), holding(cold(model(family), ids(9))[1]), "the copy")
    trim_all(caches, 3)
    feed(model(family), twin, ids(2, seed=4))
    assert_same(holding(caches), holding(cold(model(family), ids(9))[1]), "the original, later")
    del caches
    before = holding(twin)
    assert refused(trim_prompt_cache, list(twin), 10_000)
    assert_same(holding(twin), before, "the copy alone")


def test_stocks_own_trim_forgets_in_silence() -> None:
    """Why all this is here: what mlx-lm does with the same call."""
    stock_caches = make_prompt_cache(stock("gpt_oss"))
    for token in ids(12):
        stock("gpt_oss")(batch([token]), cache=stock_caches)
    taken: object = trim_prompt_cache(stock_caches, 2)
    assert taken == 0
    assert stock_caches[0].offset == 12
