"""Models of which one part can be told to fail: a layer object is wrapped, no class is."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn

from speculate.models.adapter import StockAdapter
from tests.backends.driving import EVERY, adapted


class PartFailedError(Exception):
    """Raised by a part that was told to fail."""


class Fuse(nn.Module):
    """A part of a layer that fails while it is `blown`."""

    def __init__(self, part: Any) -> None:
        nn.Module.__init__(self)
        self.part = part
        self.blown = False

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
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
    return adapted(whole), fuse


FEED_FORWARD = {"lfm2": "feed_forward"}
"""What the part after the attention is called, where it is not `mlp`."""
