"""One window over many caches: keep some, or everything goes back."""

from __future__ import annotations

import contextlib

import pytest
from mlx_lm.models.cache import (
    ChunkedKVCache,
    KVCache,
    make_prompt_cache,
    trim_prompt_cache,
)

import speculate
from speculate import SpeculateError, speculation
from speculate.backends.group import group_of
from speculate.errors import CannotRewindError, OptionError, RewindError
from tests.support.cache_contents import (
    ALL,
    FAMILIES,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
    model,
    refused,
    stock,
    trim_all,
)

TEXT = ids(12, seed=1)


@pytest.mark.parametrize("family", ALL)
def test_leaving_without_keep_restores_everything(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    before = holding(caches)
    with speculation(caches) as window:
        for width in (1, 4, 2):
            feed(model(family), caches, ids(width, seed=width))
        assert window.fed() == 7
    assert_same(holding(caches), before, "left")
    expected = cold(model(family), [*TEXT, 5])[0][-1]
    assert_equal(feed(model(family), caches, [5])[-1], expected, "going on")


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_rewinds_to_the_last_keep(family: str, error: type[BaseException]) -> None:
    caches = cold(model(family), TEXT)[1]
    with pytest.raises(error), speculation(caches) as window:
        feed(model(family), caches, TEXT[:3])
        window.keep(3)
        feed(model(family), caches, ids(4, seed=2))
        raise error
    assert_same(holding(caches), holding(cold(model(family), [*TEXT, *TEXT[:3]])[1]), "after")


@pytest.mark.parametrize("family", ALL)
def test_keeping_nothing(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    before = holding(caches)
    with speculation(caches) as window:
        window.keep(0)
        for width in (3, 1):
            feed(model(family), caches, ids(width, seed=2))
            window.keep(0)
            assert window.fed() == 0
            assert_same(holding(caches), before, f"{width} taken back")


@pytest.mark.parametrize("family", ALL)
def test_keeping_more_than_was_fed_is_refused(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    with speculation(caches) as window:
        assert refused(window.keep, 1)
        feed(model(family), caches, ids(3, seed=2))
        before = holding(caches)
        for m in (4, 100, -1):
            assert refused(window.keep, m)
            assert_same(holding(caches), before, f"refused {m}")
        window.keep(3)
        assert_same(holding(caches), before, "kept all")
        assert refused(window.keep, 1)
    assert_same(holding(caches), before, "left")


@pytest.mark.parametrize("family", ALL)
def test_what_is_kept_stays_kept(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    with speculation(caches) as window:
        feed(model(family), caches, ids(9, seed=2)[:4])
        feed(model(family), caches, ids(9, seed=2)[4:])
        window.keep(9)
        feed(model(family), caches, ids(5, seed=3))
    fresh = holding(cold(model(family), [*TEXT, *ids(9, seed=2)])[1])
    assert_same(holding(caches), fresh, "left")
    with speculation(caches):
        feed(model(family), caches, ids(2, seed=3))
    assert_same(holding(caches), fresh, "a second window")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rewind_reaches_back_over_several_forwards(family: str) -> None:
    fed = ids(10, seed=2)
    for m in range(11):
        caches = cold(model(family), TEXT)[1]
        with speculation(caches) as window:
            for start, stop in ((0, 4), (4, 5), (5, 10)):
                feed(model(family), caches, fed[start:stop])
            window.keep(m)
        expected = holding(cold(model(family), [*TEXT, *fed[:m]])[1])
        assert_same(holding(caches), expected, f"kept {m}")


def test_members_that_were_fed_fewer_keep_what_they_have() -> None:
    target, draft, idle = (cold(model(f), TEXT)[1] for f in ("qwen3_5", "gpt_oss", "dense"))
    block = ids(5, seed=2)
    for m, of_draft in ((0, 0), (2, 2), (3, 3), (5, 3)):
        with speculation(target, draft, idle) as window:
            feed(model("qwen3_5"), target, block)
            for token in block[:3]:
                feed(model("gpt_oss"), draft, [token])
            assert window.fed() == 5
            window.keep(m)
            pairs = [("qwen3_5", target, m), ("gpt_oss", draft, of_draft), ("dense", idle, 0)]
            for family, caches, kept in pairs:
                fresh = holding(cold(model(family), [*TEXT, *block[:kept]])[1])
                assert_same(holding(caches), fresh, f"{family}, kept {m}")
        for caches, kept in ((target, m), (draft, of_draft)):
            for layer in caches:
                assert layer.length() == len(TEXT) + kept
        target, draft = (cold(model(f), TEXT)[1] for f in ("qwen3_5", "gpt_oss"))


def test_a_layer_without_its_records_rewinds_to_the_kept_point() -> None:
    """The window holds on to that point itself, and what is kept behind it is fed again."""
    target, draft = (cold(model(family), TEXT)[1] for family in ("qwen3_5", "dense"))
    with speculation(target, draft) as window:
        feed(model("dense"), draft, ids(4, seed=2))
        feed(model("qwen3_5"), target, ids(4, seed=2))
        target[0].start_speculation()  # somebody drops the records of one layer
        window.keep(2)
        found = [feed(model("qwen3_5"), target, [7])[-1], feed(model("dense"), draft, [7])[-1]]
        window.keep(1)
    for family, logits in zip(("qwen3_5", "dense"), found, strict=True):
        text = [*TEXT, *ids(4, seed=2)[:2], 7]
        assert_equal(logits, cold(model(family), text)[0][-1], family)


def test_a_list_that_cannot_rewind_does_not_hold_up_the_others() -> None:
    """Leaving: the error is the caller's own, and every other list is at its kept point."""
    target, draft = (cold(model(family), TEXT)[1] for family in ("qwen3_5", "dense"))
    before = holding(draft)
    with pytest.raises((ZeroDivisionError, RewindError)), speculation(target, draft):
        feed(model("dense"), draft, ids(4, seed=2))
        feed(model("qwen3_5"), target, ids(4, seed=2))
        target[0].start_speculation()
        raise ZeroDivisionError
    assert_same(holding(draft), before, "draft")
    assert not target[0].is_trimmable(), "the target still records"


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("widths", [[90], [1] * 90, [30] * 5], ids=["1x90", "90x1", "5x30"])
def test_more_than_the_recorded_window_is_rewound_or_refused_before(
    family: str, widths: list[int]
) -> None:
    """Noticed before anything is written, never after."""
    caches = cold(model(family), ids(200))[1]
    before = holding(caches)
    with speculation(caches) as window:
        for width in widths:
            fed = window.fed()
            try:
                feed(model(family), caches, ids(width, seed=2))
            except RewindError:
                assert window.fed() == fed
                break
    assert_same(holding(caches), before, "left")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trim_inside_of_a_window_does_not_reach_before_its_kept_point(family: str) -> None:
    """What was there before could not come back: the rows would be written over."""
    caches = cold(model(family), TEXT)[1]
    before = holding(caches)
    with speculation(caches):
        feed(model(family), caches, ids(2, seed=2))
        refused(trim_prompt_cache, list(caches), 4)
        feed(model(family), caches, ids(3, seed=3))
    assert_same(holding(caches), before, "left")


@pytest.mark.parametrize("family", ALL)
def test_a_list_is_in_one_window_at_a_time(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    before = holding(caches)
    with speculation(caches) as window:
        feed(model(family), caches, ids(2, seed=2))
        with pytest.raises(SpeculateError), speculation(caches):
            raise AssertionError
        assert window.fed() == 2
        window.keep(0)
        assert_same(holding(caches), before, "the first window goes on")
        with pytest.raises(SpeculateError), speculation(cold(model(family), TEXT)[1], caches):
            raise AssertionError
    assert_same(holding(caches), before, "left")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trim_inside_of_a_window_counts(family: str) -> None:
    caches = cold(model(family), TEXT)[1]
    with speculation(caches) as window:
        feed(model(family), caches, ids(5, seed=2))
        trim_all(caches, 3)
        feed(model(family), caches, ids(2, seed=3))
        assert refused(window.keep, 5)
        window.keep(3)
        found = feed(model(family), caches, [7])[-1]
        window.keep(1)
    text = [*TEXT, *ids(5, seed=2)[:2], ids(2, seed=3)[0], 7]
    assert_equal(found, cold(model(family), text)[0][-1], "next logits")
    assert_same(holding(caches), holding(cold(model(family), text)[1]), "left")


@pytest.mark.parametrize("family", ALL)
def test_a_list_of_mlx_lm_is_lent_and_refilled(family: str) -> None:
    caches = make_prompt_cache(stock(family))
    originals = list(caches)
    feed(model(family), caches, TEXT)
    with speculation(caches) as window:
        feed(model(family), caches, ids(4, seed=2))
        window.keep(4)
        feed(model(family), caches, ids(3, seed=3))
    assert all(one is other for one, other in zip(caches, originals, strict=True))
    text = [*TEXT, *ids(4, seed=2)]
    plain = make_prompt_cache(stock(family))
    feed(model(family), plain, TEXT)
    adopted = model(family).adopt(plain)
    feed(model(family), adopted, text[len(TEXT) :])
    assert_same(holding(caches), holding([layer.release() for layer in adopted]), "refilled")


def test_a_list_of_mlx_lm_is_refilled_after_an_exception() -> None:
    caches = make_prompt_cache(stock("qwen3_5"))
    originals = list(caches)
    feed(model("qwen3_5"), caches, TEXT)
    with pytest.raises(ZeroDivisionError), speculation(caches):
        feed(model("qwen3_5"), caches, ids(4, seed=2))
        raise ZeroDivisionError
    assert all(one is other for one, other in zip(caches, originals, strict=True))
    assert_same(holding(caches), holding(cold(model("qwen3_5"), TEXT)[1]), "refilled")


def test_what_is_no_list_of_caches_is_refused() -> None:
    with pytest.raises(OptionError, match="list"), speculation([]):
        raise AssertionError
    caches: list[object] = [KVCache(), ChunkedKVCache(8)]
    with pytest.raises(CannotRewindError, match="layer 1"), speculation(caches):
        raise AssertionError
    assert [type(layer) for layer in caches] == [KVCache, ChunkedKVCache]


def test_the_names_are_public() -> None:
    assert speculate.speculation is speculation
    assert issubclass(RewindError, SpeculateError)
    caches = cold(model("dense"), TEXT)[1]
    with speculation(caches) as window:
        assert isinstance(window, speculate.Window)


# A window that was left.


@pytest.mark.parametrize("family", ["dense", "qwen3_5", "gpt_oss", "lfm2"])
def test_a_window_that_was_left_refuses_every_call(family: str) -> None:
    """It takes nothing out of the block of another window on the same caches."""
    caches = cold(model(family), TEXT)[1]
    with speculation(caches) as old:
        feed(model(family), caches, ids(3, seed=2))
        old.keep(3)
    with speculation(caches) as window:
        feed(model(family), caches, ids(4, seed=3))
        before = holding(caches)
        for call in (lambda: old.keep(0), lambda: old.keep(1), old.fed):
            with pytest.raises(RewindError, match="was left"):
                call()
        assert window.fed() == 4
        assert_same(holding(caches), before, "the open window")
        window.keep(4)
    text = [*TEXT, *ids(3, seed=2), *ids(4, seed=3)]
    assert_same(holding(caches), holding(cold(model(family), text)[1]), "left")


@pytest.mark.parametrize("failing", [False, True])
def test_a_window_that_was_left_poisons_nothing(failing: bool) -> None:
    caches = cold(model("dense"), TEXT)[1]
    left: list[speculate.Window] = []
    with contextlib.suppress(ZeroDivisionError), speculation(caches) as window:
        left.append(window)
        if failing:
            raise ZeroDivisionError
    with pytest.raises(RewindError, match="was left"):
        left[0].keep(0)
    with speculation(caches) as again:
        feed(model("dense"), caches, ids(2, seed=2))
        again.keep(2)
    text = [*TEXT, *ids(2, seed=2)]
    assert_same(holding(caches), holding(cold(model("dense"), text)[1]), "again")


def test_a_group_in_no_window_keeps_nothing() -> None:
    caches = cold(model("dense"), TEXT)[1]
    group = group_of(caches)
    assert group is not None
    with pytest.raises(RewindError, match="no speculation"):
        group.keep(0)
    with speculation(caches):
        pass
