"""From hidden states to logits: the output matrix, or the tied embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import mlx.core as mx
from typing_extensions import Protocol


class Linear(Protocol):
    """A stock matrix, quantised or not."""

    def __call__(self, x: mx.array, /) -> mx.array: ...


class Embedding(Protocol):
    """A stock embedding, quantised or not."""

    weight: mx.array

    def __call__(self, tokens: mx.array, /) -> mx.array: ...
    def as_linear(self, x: mx.array, /) -> mx.array: ...


def project(owner: object, embedding: Embedding, hidden: mx.array) -> mx.array:
    """Logits of post-norm hidden states.

    Args:
        owner: The stock module that holds `lm_head`, if the model has one. What is really
            there decides, not what the config says of tied embeddings.
        embedding: Used as the output matrix where there is none.
        hidden: `(1, T, width)`.
    """
    # A module of mlx is a dict of its parameters and submodules.
    modules = cast(Mapping[str, Linear], owner)
    head = modules.get("lm_head")
    return embedding.as_linear(hidden) if head is None else head(hidden)
