"""Drafts that are none: named by who gave them and what is wrong, and no token is lost."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from speculate import Adaptive, Decoder, Fixed, SpeculateError
from speculate.protocols import Costs, Draft
from tests.support import reference, tiny
from tests.support.table_models import Drafting

LOGPROBS = mx.full((1, tiny.VOCAB), -1.0)
TWO = mx.array([1, 2])


def odd(tokens: object, logprobs: object = ()) -> Draft:
    return Draft(cast(Any, tokens), cast(Any, logprobs))


ODD: dict[str, tuple[Draft, str]] = {
    "a list": (odd([1, 2]), "drafted a list"),
    "of another library": (odd(np.array([1, 2])), "drafted a ndarray"),
    "two rows": (odd(TWO[None]), r"drafted \(1, 2\) mlx.core.int32: .*\(k,\) integers"),
    "no integers": (odd(mx.array([1.0])), r"drafted \(1,\) mlx.core.float32"),
    "truth values": (odd(mx.array([True])), "mlx.core.bool: .*integers"),
    "fewer logprobs": (odd(TWO, [LOGPROBS]), "1 entries in Draft.logprobs for 2 tokens"),
    "more logprobs": (odd(TWO, [LOGPROBS] * 3), "3 entries in Draft.logprobs for 2 tokens"),
    "logprobs in one array": (
        odd(TWO, mx.concatenate([LOGPROBS, LOGPROBS])),
        "an? array in Draft.logprobs",
    ),
    "numbers for logprobs": (odd(TWO, [None, 0.5]), "returned a float in Draft.logprobs"),
    "a row without its axis": (odd(TWO, [LOGPROBS[0], None]), r"returned \(64,\)"),
    "a row of nothing": (odd(TWO, [LOGPROBS[:, :0], None]), r"returned \(1, 0\)"),
    "a row of two rows": (
        odd(TWO, [None, mx.concatenate([LOGPROBS, LOGPROBS])]),
        r"returned \(2, 64\)",
    ),
    "a row in half precision": (
        odd(TWO, [LOGPROBS.astype(mx.float16), None]),
        r"returned \(1, 64\) mlx.core.float16 .*in float32",
    ),
    "a row of integers": (odd(TWO, [LOGPROBS.astype(mx.int32), None]), "mlx.core.int32"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_draft_is_named_and_loses_nothing(name: str) -> None:
    draft, message = ODD[name]
    caches = reference.stock_caches("dense")
    decoder = Decoder(reference.get("dense").model, Fixed(Drafting(lambda *_: draft), 3))
    with pytest.raises(SpeculateError, match=f"'drafting' .*{message}"):
        list(decoder.generate(reference.PROMPT, 5, caches))
    reference.check_holds("dense", caches, reference.PROMPT)


def elsewhere(*_: object) -> Draft:
    """A draft that only a thread which is gone could compute."""
    with ThreadPoolExecutor(1) as pool:
        return Draft(pool.submit(lambda: mx.array([1, 2]) + 1).result())


def test_a_draft_that_cannot_be_computed_is_its_proposer_s_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    costs = Costs(0, {1: 0.01, 9: 0.0101}, {"drafting": 0.0})
    strategy = Adaptive(Drafting(elsewhere), costs=costs, clock="fixed")
    decoder = Decoder(reference.get("dense").model, strategy)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        tokens = list(decoder.generate(reference.PROMPT, 12))
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert "'drafting'" in caplog.records[0].getMessage()
    caches = reference.stock_caches("dense")
    with pytest.raises(RuntimeError, match="Stream"):
        list(
            Decoder(reference.get("dense").model, Fixed(Drafting(elsewhere), 2)).generate(
                reference.PROMPT, 5, caches
            )
        )
    reference.check_holds("dense", caches, reference.PROMPT)
