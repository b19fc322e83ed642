"""Tests on the GPU, where a block and single steps round differently, and bits are not equal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, cast

import mlx.core as mx
import pytest

LEAST: Final = 1e-4
"""Of the largest number; float32 as it ought to be multiplied is below this."""

GROWTH: Final = 160
"""How many times more the logits of small random models are off than a single product is."""


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    if not mx.is_available(mx.gpu):
        pytest.skip("needs a GPU")
    mx.set_default_device(mx.gpu)
    yield
    mx.set_default_device(mx.cpu)


@pytest.fixture
def tolerance(on_the_gpu: None) -> float:
    """How far logits may be off on this GPU, in units of the largest: TF32 comes to 5e-2."""
    return max(LEAST, GROWTH * off_by_width())


@cache
def off_by_width() -> float:
    """How far nine rows are from one row at a time, multiplied by a matrix."""
    rows = mx.random.normal((9, 256), key=mx.random.key(0))
    matrix = mx.random.normal((256, 256), key=mx.random.key(1))
    whole = rows @ matrix
    single = mx.concatenate([rows[n : n + 1] @ matrix for n in range(9)])
    return cast(float, (mx.abs(whole - single).max() / mx.abs(whole).max()).item())
