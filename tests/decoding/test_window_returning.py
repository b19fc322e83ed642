"""Kept tokens that are in no cache are not lost when caches are handed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import pytest

import speculate as sp
from speculate import SpeculativeModel
from speculate.errors import RewindError
from speculate.protocols import Rollbackable
from tests.support import reference

TEXT: Final = reference.text_of(13)


def row(ids: Sequence[int]) -> mx.array:
    return mx.array([list(ids)], dtype=mx.uint32)


def with_replay(model: SpeculativeModel) -> list[Rollbackable]:
    """Caches of a model that goes back by whole blocks, with 7 tokens of which it owes 3."""
    caches = model.make_cache()
    model.forward(row(TEXT[:4]), caches)
    with sp.speculation(caches) as window:
        model.forward(row(TEXT[4:12]), caches)
        window.keep(3)
    return caches


def test_caches_with_tokens_to_replay_are_not_returned() -> None:
    caches = with_replay(reference.get("lfm2").model)
    before = [cache.length() for cache in caches]
    for cache in caches:
        with pytest.raises(RewindError, match=r"last 3 tokens .* next model\.forward"):
            cache.release()
    assert [cache.length() for cache in caches] == before


def test_the_next_forward_replays_them_and_then_they_are() -> None:
    tiny = reference.get("lfm2")
    caches, text = with_replay(tiny.model), [*TEXT[:7], 9, 5]
    tiny.model.forward(row(text[7:8]), caches)
    stock: list[object] = [cache.release() for cache in caches]
    expected = tiny.stock(row(text), cache=reference.stock_caches("lfm2"))[0, -1]
    found = tiny.stock(row(text[8:]), cache=stock)[0, -1]
    assert mx.array_equal(found, expected)
