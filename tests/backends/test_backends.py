"""What single caches promise besides rewinding: masks, late starts, checkpoints, types."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from speculate import SpeculateError
from speculate.backends import adopt as adopt_module
from speculate.backends.adopt import ENTRY_POINTS, adopt
from speculate.backends.kv import RewindableKVCache, quantize
from speculate.backends.rotating import RewindableRotatingKVCache, mask_with_sinks
from speculate.errors import CannotRewindError, RewindError
from speculate.protocols import RecordsRollback
from tests.support.cache_contents import (
    CUT_ANYWHERE,
    assert_close,
    assert_equal,
    assert_same,
    feed,
    holding,
    ids,
    model,
    refused,
    speculate_all,
    to_list,
    write,
)
from tests.support.caches_by_kind import KINDS, consume, fresh, group, make


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_given_a_way_to_rewind_and_rows_are_not(kind: str) -> None:
    for cache in make(kind):
        assert isinstance(cache, RecordsRollback) == ("ArraysCache" in type(cache).__name__)


def _stock_mask(cache: KVCache, rows: int, as_array: bool) -> mx.array | str | None:
    mask: mx.array | str | None = cache.make_mask(rows, return_array=as_array, window_size=None)
    return mask


@pytest.mark.parametrize(
    ("prior", "rows", "keep"), [*itertools.product([0, 1, 6, 7, 8, 9, 30], [1, 2, 9], [0, 4])]
)
def test_masks_are_stocks_masks(prior: int, rows: int, keep: int) -> None:
    ours, stock = RewindableRotatingKVCache(8, keep), RotatingKVCache(8, keep)
    row_cache, stock_rows = RewindableKVCache(), KVCache()
    if prior:
        new = mx.ones((1, 1, prior, 4))
        for cache in (ours, stock, row_cache, stock_rows):
            write(cache, new)
    for found, expected in (
        (ours.make_mask(rows), stock.make_mask(rows)),
        (ours.make_mask(rows, window_size=8), stock.make_mask(rows, window_size=8)),
        (ours.make_mask(rows, return_array=True), stock.make_mask(rows, return_array=True)),
        (row_cache.make_mask(rows), _stock_mask(stock_rows, rows, False)),
        (row_cache.make_mask(rows, True), _stock_mask(stock_rows, rows, True)),
    ):
        if isinstance(expected, mx.array):
            assert isinstance(found, mx.array)
            assert_equal(found, expected, "mask")
        else:
            assert found is expected or found == expected


@pytest.mark.parametrize("fed", [1, 3, 5, 7, 8, 20])
def test_a_narrower_mask_shows_the_last_rows(fed: int) -> None:
    """A layer may look at fewer rows than its cache holds."""
    ours, stock = RewindableRotatingKVCache(8), RotatingKVCache(8)
    for n in range(fed):
        rows = mx.full((1, 1, 1, 4), n)
        write(ours, rows)
        write(stock, rows)
    masks = [cache.make_mask(1, window_size=5) for cache in (ours, stock)]
    seen = []
    for cache, mask in zip((ours, stock), masks, strict=True):
        keys, _ = write(cache, mx.full((1, 1, 1, 4), fed))
        values = to_list(keys[0, 0, :, 0])
        shown = [True] * len(values) if mask is None else to_list(mask)
        seen.append(sorted(v for v, s in zip(values, shown, strict=True) if s))
    assert seen[0] == seen[1] == list(range(max(0, fed - 4), fed + 1))


def test_a_mask_with_sinks_shows_what_single_steps_see() -> None:
    """Row by row: the sinks, and as many of the last rows as fit in the window."""
    for prior in (4, 7):
        for offset in range(5):
            row = mask_with_sinks(5, prior, 8, 4)[offset].tolist()
            position = prior + offset
            recent = range(max(0, position - 3), position + 1)
            assert row == [c < 4 or c in recent for c in range(prior + 5)]


# A cache that starts in the middle of a text, as a head's or a late draft's does.


@pytest.mark.parametrize("family", CUT_ANYWHERE)
def test_a_late_cache_has_true_positions_and_rewinds_to_its_start(family: str) -> None:
    late, early = (model(family).make_cache(position=p) for p in (40, 0))
    assert [layer.length() for layer in late] == [40] * len(late)
    speculate_all(late)
    whole = feed(model(family), late, ids(12))
    assert [layer.length() for layer in late] == [52] * len(late)
    # Rotary positions are relative: a late start changes logits by rounding only.
    assert_close(whole, feed(model(family), early, ids(12)), "logits")
    before = holding(late)
    assert refused(lambda: [layer.trim(13) for layer in late])
    assert_same(holding(late), before, "refused")
    for layer in late:
        assert layer.trim(7) == 7
    rows = [feed(model(family), late, [token]) for token in ids(12)[5:]]
    assert_equal(mx.concatenate(rows), whole[5:], "single steps")
    assert_same(holding(late), before, "fed again")


@pytest.mark.parametrize("family", ["dense", "gpt_oss"])
def test_a_late_cache_is_not_handed_to_mlx_lm(family: str) -> None:
    """Its rows would count from 0 there."""
    for layer in model(family).make_cache(position=40):
        with pytest.raises(RewindError, match="started late"):
            layer.release()


# Quantising in the middle of a text.


def test_a_quantised_cache_takes_its_predecessors_place_in_the_group() -> None:
    caches = fresh("hybrid", ids(12))
    (plain,) = [cache for cache in caches if isinstance(cache, RewindableKVCache)]
    index, rows = caches.index(plain), plain.arrays()
    packed = quantize(plain, 32, 8)
    group(caches).replace(index, packed)
    caches[index] = packed
    assert packed.length() == 12
    assert plain.length() == 12, "quantising may fail in another layer"
    expected = mx.quantize(rows[0][..., :12, :], group_size=32, bits=8)
    assert packed.keys is not None
    for found, part in zip(packed.keys, expected, strict=True):
        assert_equal(found[..., :12, :], part, "keys")
    before = holding(caches)
    group(caches).start()
    consume("hybrid", caches, ids(4, seed=2))
    assert refused(packed.trim, 5)
    group(caches).keep(0)
    assert_same(holding(caches), before, "rolled back")
    assert isinstance(packed.release(), QuantizedKVCache)


def test_a_late_cache_is_quantised_rightly_or_not_at_all() -> None:
    (late,) = adopt([KVCache()], position=40)
    assert isinstance(late, RewindableKVCache)
    write(late, mx.ones((1, 1, 5, 32)))
    try:
        packed = quantize(late, 32, 8)
    except SpeculateError:
        return
    assert packed.length() == 45
    keys, _ = write(packed, mx.ones((1, 1, 1, 32)))
    assert [part.shape[2] for part in keys] == [6, 6, 6], "unwritten rows are visible"


def test_a_windows_state_is_not_assigned() -> None:
    with pytest.raises(RewindError, match="adopt"):
        RewindableRotatingKVCache(8).state = (None, None, 0, 0, 8, 0)


class Foreign:
    """A cache class that only its own package knows."""


class ForeignRows(KVCache):
    """A kind of `KVCache` that only its own package can rewind."""

    def __init__(self) -> None:
        KVCache.__init__(self)


def install(monkeypatch: pytest.MonkeyPatch, name: str, *backends: tuple[str, object]) -> None:
    """Pretend that packages name backends, each by (value, what it loads), for a class."""
    entries = [
        SimpleNamespace(value=value, load=lambda made=made: lambda cache: made)
        for value, made in backends
    ]

    def entry_points(*, group: str, name: str) -> list[object]:
        return [*entries] if (group, name) == (ENTRY_POINTS, expected) else []

    expected = name
    monkeypatch.setattr(adopt_module, "entry_points", entry_points)


def test_other_packages_can_bring_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = RewindableKVCache()
    entry = SimpleNamespace(load=lambda: lambda cache: ours)

    def entry_points(*, group: str, name: str) -> list[object]:
        return [entry] if (group, name) == (ENTRY_POINTS, "Foreign") else []

    monkeypatch.setattr(adopt_module, "entry_points", entry_points)
    assert adopt([Foreign(), KVCache()])[0] is ours


def test_a_backend_of_another_package_comes_before_that_of_a_base_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = RewindableKVCache()
    install(monkeypatch, "ForeignRows", ("a.caches:adopt", ours))
    assert adopt([ForeignRows()])[0] is ours
    (inside,) = adopt([CacheList(ForeignRows())])
    assert isinstance(inside, CacheList)
    assert inside.caches[0] is ours
    two = ForeignRows()
    write(two, mx.ones((2, 1, 3, 4)))
    with pytest.raises(CannotRewindError, match=r"layer 0: batched caches"):
        adopt([two])


def test_two_packages_that_claim_one_class_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(f"{package}.caches:adopt", RewindableKVCache()) for package in ("a", "b")]
    install(monkeypatch, "Foreign", *both)
    full = KVCache()
    write(full, mx.ones((1, 1, 5, 4)))
    for layer in (Foreign(), CacheList(Foreign())):
        with pytest.raises(CannotRewindError, match=r"layer 1: .*a\.caches:adopt.*b\.caches:adopt"):
            adopt([full, layer])
    assert full.offset == 5, "nothing was moved"


def test_one_entry_point_that_is_found_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a package is on the path twice."""
    ours = RewindableKVCache()
    install(monkeypatch, "Foreign", ("a.caches:adopt", ours), ("a.caches:adopt", ours))
    assert adopt([Foreign()])[0] is ours
