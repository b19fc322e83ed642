"""The recurrence is an option, and a deferred rewind changes no result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

import speculate as sp
from speculate.backends.arrays import RewindableArraysCache
from speculate.errors import OptionError
from speculate.models.adapter import StockAdapter
from speculate.models.gated_delta import cheapest
from speculate.models.stock import GatedDeltaLayer
from speculate.protocols import Recurrence, StockModel, SupportsDeferredRollback
from tests.support import tiny
from tests.support.cache_contents import (
    Caches,
    adapted,
    assert_equal,
    assert_same,
    batch,
    cold,
    feed,
    holding,
    ids,
    model,
    stock,
)

FOLDED = "qwen3_5_folded"
TEXT, BLOCK = ids(12, seed=1), ids(5, seed=2)


def test_it_is_an_option_of_adapt_that_an_adapter_remembers() -> None:
    plain = cast(StockModel, tiny.hybrid())
    assert cast(StockAdapter, sp.adapt(plain)).recurrence is None
    chosen = sp.adapt(plain, recurrence="kernel")
    assert cast(StockAdapter, chosen).recurrence == "kernel"
    assert cast(StockAdapter, sp.adapt(chosen, vocabulary={"a": 1})).recurrence == "kernel"
    assert cast(StockAdapter, sp.adapt(chosen, recurrence="ops")).recurrence == "ops"


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'ops', 'kernel' or None, got 'metal'"):
        sp.adapt(cast(StockModel, tiny.dense()), recurrence=cast(Recurrence, "metal"))


def test_without_a_kernel_it_is_a_loop_of_operations() -> None:
    layer: Any = stock("qwen3_5").layers[0]
    assert cheapest(cast(GatedDeltaLayer, layer.linear_attn)) == "ops"


def test_a_state_cache_defers() -> None:
    assert isinstance(RewindableArraysCache(2), SupportsDeferredRollback)


@contextmanager
def noted() -> Iterator[tuple[Caches, sp.Window]]:
    """Caches of `TEXT` and two tokens of `BLOCK`, which are noted and not run."""
    caches = cold(model(FOLDED), TEXT)[1]
    with sp.speculation(caches) as window:
        feed(model(FOLDED), caches, BLOCK)
        window.keep(2)
        assert notes(caches) == 2
        yield caches, window


def notes(caches: Caches) -> int:
    """Layers whose rewind is noted and not carried out."""
    return sum(isinstance(c, SupportsDeferredRollback) and c.deferred() is not None for c in caches)


def check_goes_on(caches: Caches) -> None:
    expected = cold(model(FOLDED), [*TEXT, *BLOCK[:2], *ids(3, seed=3)])
    found = feed(model(FOLDED), caches, ids(3, seed=3))
    assert_equal(found, expected[0][-3:], "going on")
    assert_same(holding(caches), holding(expected[1]), "what is held in the end")


def test_it_is_gone_when_it_has_been_run() -> None:
    with noted() as (caches, window):
        check_goes_on(caches)
        assert notes(caches) == 0
        window.keep(3)


def read(caches: Caches, _: sp.Window) -> Caches:
    fresh = cold(model(FOLDED), [*TEXT, *BLOCK[:2]])[1]
    assert_same(holding(caches), holding(fresh), "read")
    assert notes(caches) == 0
    return caches


def copied(caches: Caches, _: sp.Window) -> Caches:
    """A copy is in no window, and its layer is the same one."""
    return copy.deepcopy(caches)


def returned_to(caches: Caches, window: sp.Window) -> Caches:
    feed(model(FOLDED), caches, ids(4, seed=7))
    window.keep(0)
    assert notes(caches) == 2
    return caches


def rejected_again(caches: Caches, window: sp.Window) -> Caches:
    for seed in (7, 8):
        feed(model(FOLDED), caches, ids(3, seed=seed))
        window.keep(0)
    return caches


def run_the_other_way(caches: Caches, window: sp.Window) -> Caches:
    """By an adapter with the other option, and back."""
    feed(adapted(stock(FOLDED), "ops"), caches, ids(4, seed=7))
    window.keep(0)
    return caches


def run_by_stock(caches: Caches, window: sp.Window) -> Caches:
    """mlx-lm's own layer reads the entries. Nothing records, so rollback is by reference."""
    undo = [cache.checkpoint() for cache in caches]
    expected = cold(model(FOLDED), [*TEXT, *BLOCK[:2], 7])[0][-1]
    assert_equal(stock(FOLDED)(batch([7]), cache=caches)[0, -1], expected, "mlx-lm's model")
    for rewind in undo:
        rewind()
    return caches


@pytest.mark.parametrize(
    "meanwhile", [read, copied, returned_to, rejected_again, run_the_other_way, run_by_stock]
)
def test_whatever_comes_between_a_note_and_the_next_block(
    meanwhile: Callable[[Caches, sp.Window], Caches],
) -> None:
    with noted() as (caches, window):
        check_goes_on(meanwhile(caches, window))


def test_a_window_that_closes_leaves_the_note_to_the_next_forward() -> None:
    with noted() as (caches, _):
        pass
    check_goes_on(caches)


def test_both_ways_take_turns_in_one_text() -> None:
    ways = [adapted(stock(FOLDED), way) for way in ("ops", "kernel")]
    caches, text = cold(ways[0], TEXT)[1], [*TEXT]
    with sp.speculation(caches) as window:
        for turn, stay in enumerate((1, 3, 2, 5, 1, 4, 0, 2, 3)):
            block = ids(5, seed=turn)
            rows = feed(ways[turn // 2 % 2], caches, block)
            assert_equal(rows, cold(ways[0], [*text, *block])[0][-5:], f"turn {turn}")
            window.keep(stay)
            text += block[:stay]
