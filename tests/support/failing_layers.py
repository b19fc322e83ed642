"""Models with a part that can be made to fail: a layer object is wrapped, no class is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import mlx.core as mx
from mlx import nn

from speculate import speculation
from speculate.models.adapter import StockAdapter
from tests.support import tiny
from tests.support.cache_contents import (
    EVERY,
    adapted,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
)


class PartFailedError(Exception):
    """Raised by a part that was made to fail."""


class Fuse(nn.Module):
    """A part of a layer that fails while it is `blown`."""

    def __init__(self, part: Any) -> None:
        nn.Module.__init__(self)
        self.part = part
        self.blown = False
        self.widths: list[int] = []  # tokens of each call

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        self.widths.append(args[0].shape[1])
        if self.blown:
            raise PartFailedError
        out: mx.array = self.part(*args, **kwargs)
        return out


def fused(family: str, layer: int, path: str) -> tuple[StockAdapter, Fuse]:
    """A fresh adapter, and the part of one of its model's layers that can fail.

    Args:
        family: Which model to build.
        layer: Which layer.
        path: The part, from the layer on, as `self_attn.o_proj`.
    """
    whole: Any = EVERY[family]()
    owner: Any = whole.layers[layer]
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step)
    fuse = Fuse(getattr(owner, name))
    setattr(owner, name, fuse)
    return adapted(whole, tiny.recurrence(family)), fuse


def check_failed_forward(family: str, layer: int, path: str, *, window: bool = True) -> None:
    """A forward that fails in a part leaves every layer as it was, and can be tried again."""
    driven, fuse = fused(family, layer, path)
    text, more = ids(12, seed=1), ids(4, seed=2)
    caches = cold(driven, text)[1]
    with speculation(caches) if window else nullcontext():
        feed(driven, caches, more)
        before = holding(caches)
        for width in (1, 5):
            fuse.blown = True
            failed = False
            try:
                feed(driven, caches, ids(width, seed=3))
            except PartFailedError:
                failed = True
            assert failed, "the part was not reached, or another error came out"
            fuse.blown = False
            assert_same(holding(caches), before, f"a block of {width} failed")
        expected = cold(driven, [*text, *more, 7])[0][-1]
        assert_equal(feed(driven, caches, [7])[-1], expected, "next logits")


FEED_FORWARD = {"lfm2": "feed_forward"}
"""What the part after the attention is called, where it is not `mlp`."""
