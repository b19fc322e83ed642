"""Caches of every kind, fed by the conformance kit's stand-ins for layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from speculate.backends.group import CacheGroup, group_of
from speculate.testing._cache_harness import CacheSpec
from speculate.testing.layers import run_layers
from tests.backends import test_kinds as kinds
from tests.support.cache_contents import Caches

KINDS: Final[dict[str, CacheSpec]] = {
    "rows": kinds.TestRows().spec(),
    "quantised rows": kinds.TestQuantisedRows().spec(),
    "window": kinds.TestWindow().spec(),
    "window of 1": kinds.TestWindowOfOne().spec(),
    "window with sinks": kinds.TestWindowWithSinks().spec(),
    "state": kinds.TestState().spec(),
    "state without records": kinds.TestStateWithoutRecords().spec(),
    "list": kinds.TestList().spec(),
    "list without records": kinds.TestListWithoutRecords().spec(),
    "hybrid": kinds.TestHybrid().spec(),
    "hybrid without records": kinds.TestHybridWithoutRecords().spec(),
}
"""Each a list of layers whose caches are one group."""


def make(kind: str) -> Caches:
    """Fresh rewindable caches."""
    return KINDS[kind].make()


def group(caches: Caches) -> CacheGroup:
    """Their group."""
    found = group_of(caches)
    assert found is not None
    return found


def consume(
    kind: str, caches: Caches, tokens: Sequence[int], *, fail_after: int | None = None
) -> None:
    """One forward over tokens.

    Args:
        kind: One of `KINDS`.
        caches: Fed by it.
        tokens: Ids.
        fail_after: Raise when so many layers have consumed the tokens, or all of them.

    Raises:
        ZeroDivisionError: As asked for.
    """
    layers = KINDS[kind].layers[:fail_after]
    with group(caches).block(mx.array(list(tokens), dtype=mx.uint32)[None]) as fed:
        if layers:
            run_layers(layers, caches[:fail_after], fed)
        if fail_after is not None:
            raise ZeroDivisionError


def fresh(kind: str, tokens: Sequence[int]) -> Caches:
    """Caches that were fed just these tokens."""
    caches = make(kind)
    if tokens:
        consume(kind, caches, tokens)
    return caches
