"""Models of every family. Made for these tests alone: a GPU draws other random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import pytest
from mlx import nn

import speculate as sp
from speculate import SpeculativeModel
from speculate.protocols import Recurrence
from tests.support import tiny
from tests.support.cache_contents import adapted

COARSE: Final = 1e-3
"""A tolerance that only TF32 needs."""


def hybrid() -> nn.Module:
    """Heads as wide as mlx-lm's Metal kernel wants them."""
    return tiny.hybrid(linear_key_head_dim=32)


BUILDERS: Final[dict[str, tuple[Callable[[], nn.Module], Recurrence | None]]] = {
    "hybrid, states picked": (hybrid, "ops"),
    "hybrid, folded replay": (hybrid, "kernel"),
    "hybrid with experts, states picked": (tiny.next_moe, "ops"),
    "hybrid with experts, folded replay": (tiny.next_moe, "kernel"),
    "windowed with experts": (tiny.windowed, None),
    "dense": (tiny.dense_untied, None),
    "short convolutions": (tiny.short_conv, None),
}
TINY: Final = list(BUILDERS)
BUNDLED: Final = {
    "bundled hybrid": "hybrid",
    "bundled dense": "draft",
    "bundled window with experts": "windowed",
}


@cache
def model(name: str) -> SpeculativeModel:
    if name in BUNDLED:
        return sp.load_demo(BUNDLED[name])[0]
    build, recurrence = BUILDERS[name]
    return adapted(build(), recurrence)


def usable(name: str, tolerance: float) -> SpeculativeModel:
    """A model, unless TF32 sends its tokens to other experts: no tolerance can allow for that."""
    if "experts" in name and tolerance > COARSE:
        pytest.skip("experts need float32 in full: MLX_ENABLE_TF32=0")
    return model(name)
