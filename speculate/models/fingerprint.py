"""A name for a model's shapes and formats."""

from __future__ import annotations

import hashlib
from typing import cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten


def fingerprint(module: object) -> str:
    """Hash of the class, and of each weight's name, shape and dtype. Reads no weight.

    Args:
        module: A module of mlx-lm.
    """
    digest = hashlib.sha256(type(module).__module__.encode())
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(cast(Module, module).parameters()))
    for name, weight in weights:
        digest.update(f"{name} {weight.shape} {weight.dtype}\n".encode())
    return digest.hexdigest()[:16]
