"""From mlx-lm's caches to ours and back: the same objects, the same types, the same rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)

from speculate import speculation
from speculate.backends.adopt import adopt
from speculate.backends.group import group_of
from speculate.errors import CannotRewindError, OptionError
from speculate.protocols import Rollbackable
from tests.support import tiny
from tests.support.cache_contents import (
    ALL,
    CUT_ANYWHERE,
    assert_close,
    assert_equal,
    assert_same,
    batch,
    cold,
    feed,
    holding,
    ids,
    model,
    speculate_all,
    stock,
    trim_all,
)


def stepped(caches: list[object], family: str, tokens: Sequence[int]) -> list[object]:
    """Stock caches that the stock model was fed token by token."""
    for token in tokens:
        mx.eval(stock(family)(batch([token]), cache=caches))
    return caches


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 20])
def test_a_round_trip_gives_the_same_objects_with_the_same_content(
    family: str, length: int
) -> None:
    originals = stepped(make_prompt_cache(stock(family)), family, ids(length))
    before = holding(originals)
    adopted = model(family).adopt(originals)
    assert_same(holding(adopted), before, "adopted")
    assert all(isinstance(layer, Rollbackable) for layer in adopted)
    assert all(getattr(layer, "offset", 0) == 0 for layer in originals), "two owners"
    back = [layer.release() for layer in adopted]
    assert all(one is other for one, other in zip(back, originals, strict=True))
    assert_same(holding(back), before, "handed back")
    assert not any(layer.arrays() for layer in adopted), "two owners"


@pytest.mark.parametrize("family", ALL)
def test_the_stock_model_goes_on_where_ours_stopped(family: str) -> None:
    """Over the wrap, and back and forth."""
    text = ids(40)
    caches = make_prompt_cache(stock(family))
    plain = stepped(make_prompt_cache(stock(family)), family, text)
    for start in range(0, 40, 8):
        stepped(caches, family, text[start : start + 3])
        adopted = model(family).adopt(caches)
        with speculation(adopted) as window:
            feed(model(family), adopted, [*text[start + 3 : start + 6], 1, 2])
            window.keep(3)
            feed(model(family), adopted, text[start + 6 : start + 8])
            window.keep(2)
        caches = [layer.release() for layer in adopted]
    kinds = [type(layer) for layer in make_prompt_cache(stock(family))]
    assert [type(layer) for layer in caches] == kinds
    found, expected = (stock(family)(batch([5]), cache=c)[0] for c in (caches, plain))
    (assert_close if family == "gpt_oss" else assert_equal)(found, expected, "next logits")


@pytest.mark.parametrize("family", ALL)
def test_fresh_caches_are_returned_as_new_stock_ones(family: str) -> None:
    """With the rows of a cold prefill, however they came about."""
    driven, prompt, more = model(family), 12, 3
    text = ids(prompt + more, seed=1)
    caches = cold(driven, text[:prompt])[1]
    with speculation(caches) as window:
        feed(driven, caches, [*text[prompt:], *ids(4, seed=2)])
        window.keep(more)
    if all(layer.length() == len(text) for layer in caches):
        handed = [layer.release() for layer in caches]
        fresh = cold(driven, text)[1]
        assert_same(holding(handed), holding(fresh), "handed back")
        assert [len(layer.arrays()) for layer in caches] == [0] * len(caches), "kept something"
    back = [layer.release() for layer in cold(model(family), ids(9))[1]]
    assert [type(layer) for layer in back] == [type(c) for c in make_prompt_cache(stock(family))]
    expected = cold(model(family), [*ids(9), 5])[0][-1:]
    found = stock(family)(batch([5]), cache=back)[0]
    (assert_close if family == "gpt_oss" else assert_equal)(found, expected, "next logits")


@pytest.mark.parametrize("family", CUT_ANYWHERE)
def test_hand_back_after_trimming(family: str) -> None:
    for length in (5, 12, 200):
        adopted = cold(model(family), ids(length))[1]
        speculate_all(adopted)
        feed(model(family), adopted, ids(6, seed=3))
        trim_all(adopted, 4)
        fresh = cold(model(family), [*ids(length), *ids(6, seed=3)[:2]])[1]
        back = [layer.release() for layer in adopted]
        assert_same(holding(back), holding(fresh), f"{length} tokens")


# Windows, in every state that mlx-lm leaves them in.


RING = [
    ("unwrapped, in one chunk", lambda c, f: stepped_in(c, f, [5])),
    ("longer than the window, in one chunk", lambda c, f: stepped_in(c, f, [20])),
    ("in chunks", lambda c, f: stepped_in(c, f, [5, 7, 6])),
    ("wrapped once", lambda c, f: stepped_in(c, f, [1] * 11)),
    ("exactly full", lambda c, f: stepped_in(c, f, [1] * 8)),
    ("exactly full again", lambda c, f: stepped_in(c, f, [1] * 16)),
    ("a chunk, then steps", lambda c, f: stepped_in(c, f, [12, 1, 1, 1])),
    ("cut back, by steps", lambda c, f: cut_back(c, f, [1] * 7)),
    ("cut back, by a chunk", lambda c, f: cut_back(c, f, [7])),
    ("steps, then a chunk", lambda c, f: stepped_in(c, f, [*[1] * 11, 4])),
]


def cut_back(caches: list[object], family: str, widths: list[int]) -> int:
    length = stepped_in(caches, family, widths)
    taken: object = trim_prompt_cache(caches, 3)
    assert taken == 3
    return length - 3


def stepped_in(caches: list[object], family: str, widths: list[int]) -> int:
    text, start = ids(40), 0
    for width in widths:
        mx.eval(stock(family)(batch(text[start : start + width]), cache=caches))
        start += width
    return start


@pytest.mark.parametrize(("state", "fill"), RING, ids=[name for name, _ in RING])
@pytest.mark.parametrize("keep", [None, 4], ids=["gpt_oss", "sinks"])
def test_windows_in_every_state(
    state: str, fill: Callable[[list[object], str], int], keep: int | None
) -> None:
    family = "gpt_oss" if keep is None else "qwen3"

    def empty() -> list[object]:
        if keep is None:
            return make_prompt_cache(stock(family))
        return [RotatingKVCache(max_size=tiny.WINDOW, keep=keep) for _ in stock(family).layers]

    caches, plain = empty(), empty()
    length = fill(caches, family)
    fill(plain, family)
    adopted = model(family).adopt(caches)
    assert [layer.length() for layer in adopted] == [length] * len(adopted)
    assert_same(holding(adopted), holding(plain), state)
    back = [layer.release() for layer in adopted]
    assert_same(holding(back), holding(plain), f"{state}, handed back")
    assert all(one is other for one, other in zip(back, caches, strict=True))
    adopted = model(family).adopt(back)
    for token in ids(9, seed=6):
        expected = stock(family)(batch([token]), cache=plain)[0]
        assert_close(feed(model(family), adopted, [token]), expected, state)
    back = [layer.release() for layer in adopted]
    assert_same_rows_closely(back, plain)
    for token in ids(5, seed=7):
        found, expected = (stock(family)(batch([token]), cache=c)[0] for c in (back, plain))
        assert_close(found, expected, f"{state}, stock again")


def assert_same_rows_closely(caches: list[object], plain: list[object]) -> None:
    """Their rows were computed from rings, whose order costs a rounding."""
    one, other = holding(caches), holding(plain)
    assert one.lengths == other.lengths
    for left, right in zip(one.entries, other.entries, strict=True):
        for a, b in zip(left, right, strict=True):
            assert a is not None
            assert b is not None
            assert a.shape == b.shape
            assert_close(a, b, "rows")


# What cannot be adopted.


CacheT = TypeVar("CacheT", KVCache, RotatingKVCache)


class OddCache(KVCache):
    """A third-party subclass of a known cache."""


def filled(cache: CacheT, sequences: int) -> CacheT:
    cache.update_and_fetch(mx.ones((sequences, 2, 3, 8)), mx.ones((sequences, 2, 3, 8)))
    return cache


def padded() -> ArraysCache:
    return ArraysCache(2, left_padding=[1, 0])


def state_of_two() -> ArraysCache:
    cache = ArraysCache(2)
    cache[0] = mx.ones((2, 3, 8))
    return cache


REFUSED: list[tuple[Callable[[], object], str]] = [
    (OddCache, "OddCache"),
    (lambda: ChunkedKVCache(16), "ChunkedKVCache"),
    (ConcatenateKVCache, "ConcatenateKVCache"),
    (lambda: BatchKVCache([0, 1]), "BatchKVCache"),
    (lambda: BatchRotatingKVCache(8, [0, 1]), "BatchRotatingKVCache"),
    (object, "object"),
    (lambda: filled(KVCache(), 2), "one sequence"),
    (lambda: filled(RotatingKVCache(8), 2), "one sequence"),
    (padded, "one sequence"),
    (state_of_two, "one sequence"),
    (lambda: CacheList(KVCache(), ChunkedKVCache(16)), "ChunkedKVCache"),
    (lambda: CacheList(KVCache(), filled(KVCache(), 2)), "one sequence"),
]


@pytest.mark.parametrize(("build", "named"), REFUSED)
def test_what_cannot_rewind_is_refused_by_name_and_nothing_moves(
    build: Callable[[], object], named: str
) -> None:
    good = filled(KVCache(), 1)
    state = ArraysCache(1)
    state[0] = mx.ones((1, 3))
    with pytest.raises(CannotRewindError, match=rf"layer 2: .*{named}"):
        adopt([good, state, build()])
    assert good.offset == 3
    assert good.keys is not None
    assert state[0] is not None


def test_batched_quantised_rows_are_refused() -> None:
    cache = QuantizedKVCache(group_size=32, bits=8)
    cache.update_and_fetch(mx.ones((2, 2, 3, 32)), mx.ones((2, 2, 3, 32)))
    with pytest.raises(CannotRewindError, match=r"layer 0: .*one sequence"):
        adopt([cache])


def test_adopting_what_is_rewindable_already_changes_nothing() -> None:
    caches = cold(model("qwen3_5"), ids(9))[1]
    group = group_of(caches)
    again = model("qwen3_5").adopt(caches)
    assert all(one is other for one, other in zip(again, caches, strict=True))
    assert group_of(again) is group


def test_a_list_keeps_its_members_objects() -> None:
    members = (ArraysCache(2), KVCache())
    originals = CacheList(*members)
    (adopted,) = adopt([originals])
    back = adopted.release()
    assert back is originals
    assert all(one is other for one, other in zip(originals.caches, members, strict=True))


# One cache at two places.


def shared_rows() -> list[object]:
    one = filled(KVCache(), 1)
    return [one, copy.copy(one)]


def own_twice() -> list[object]:
    one = cold(model("dense"), ids(5))[1]
    return [one[0], one[1], one[0]]


SHARED: list[tuple[Callable[[], list[object]], str]] = [
    (lambda: [filled(KVCache(), 1)] * 3, "layer 0 and layer 1 share one KVCache"),
    (lambda: [ArraysCache(2), *[ArraysCache(2)] * 2], "layer 1 and layer 2 share one ArraysCache"),
    (shared_rows, "layer 0 and layer 1 share the rows of one KVCache"),
    (own_twice, "layer 0 and layer 2 share one Rewindable"),
    (lambda: [CacheList(*[KVCache()] * 2)], "member 0 of layer 0 and member 1 of layer 0 share"),
    (
        lambda: [(one := filled(KVCache(), 1)), CacheList(ArraysCache(1), one)],
        "layer 0 and member 1 of layer 1 share one KVCache",
    ),
]


@pytest.mark.parametrize(("build", "named"), SHARED)
def test_a_cache_at_two_places_is_refused_by_name_and_nothing_moves(
    build: Callable[[], list[object]], named: str
) -> None:
    caches = build()
    before, held = list(caches), holding(caches)
    with pytest.raises(OptionError, match=named):
        adopt(caches)
    with pytest.raises(OptionError, match=named), speculation(caches):
        raise AssertionError
    assert all(one is other for one, other in zip(caches, before, strict=True))
    assert_same(holding(caches), held, "refused")


def test_states_may_share_what_is_never_written_to() -> None:
    """A layer replaces its entries, so a common beginning is no harm."""
    states, begin = [ArraysCache(1), ArraysCache(1)], mx.zeros((1, 3))
    for state in states:
        state[0] = begin
    assert len(adopt(states)) == 2


def test_lists_of_one_window_share_no_cache() -> None:
    kv, rows = filled(KVCache(), 1), cold(model("dense"), ids(5))[1]
    one: list[object] = [kv]
    both: list[tuple[list[object], list[object]]] = [([kv], [kv]), (one, one), ([*rows], [rows[2]])]
    for first, second in both:
        before, held = [*first, *second], holding([*first, *second])
        named = "of list 0 and layer 0 of list 1 share one"
        with pytest.raises(OptionError, match=named), speculation(first, second):
            raise AssertionError
        assert all(a is b for a, b in zip([*first, *second], before, strict=True))
        assert_same(holding([*first, *second]), held, "refused")
        with speculation(first):
            pass
