"""Two models and a list of caches for both, as callers of mlx-lm's steps have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import mlx.core as mx
import pytest

from speculate.errors import CacheOnLoanError
from tests.support import reference

Step = tuple[int, mx.array, bool]

PAIRS: Final = (
    ("dense", "small_dense"),
    ("qwen3_5", "small_dense"),
    ("qwen3_5", "qwen3_5"),
    ("qwen3_next", "gpt_oss"),
    ("gpt_oss", "qwen3_next"),
    ("gpt_oss", "small_dense"),
    ("lfm2", "lfm2"),
)
"""Targets and drafts: dense, recurrent and windowed models on either side."""


def ids(steps: Iterable[Step]) -> list[int]:
    return [token for token, _, _ in steps]


def both_caches(target: str, draft: str) -> list[object]:
    """A fresh list for two models, as mlx-lm's command line makes it."""
    return [*reference.stock_caches(target), *reference.stock_caches(draft)]


def check_both(target: str, draft: str, caches: list[object], text: Sequence[int]) -> None:
    """Either half holds a text as a cold prefill of its model does."""
    count = len(reference.stock_caches(target))
    reference.check_holds(target, caches[:count], text)
    reference.check_holds(draft, caches[count:], text)


def check_on_loan(caches: list[object]) -> None:
    for cache in caches:
        with pytest.raises(CacheOnLoanError):
            _ = cache.state  # type: ignore[attr-defined]
