"""Rounding with a heavy tail is told from mistakes by a second look, which excuses none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx
import pytest
from typing_extensions import override

from speculate import SpeculativeModel, verify
from speculate.backends.group import CacheGroup
from speculate.protocols import Forward
from speculate.verify import Difference, Result
from tests.support.reference import get
from tests.support.verify_subjects import (
    Around,
    InBlocks,
    second_best,
    subject,
    verified,
    with_ties,
    wrong,
)

USUAL: Final = 1e-4
RARE: Final = 0.5
ONE_IN: Final = 8
"""Places, of which one rounds badly."""


@final
class Rounding(Around):
    """Rounds by the width of the block: usually a little, and at some places of a text a lot."""

    def __init__(self, inner: SpeculativeModel, phase: float = 0.0) -> None:
        super().__init__(inner)
        self.phase = phase

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        out = super().forward_stock(tokens, cache)
        # The CPU gives a place the same numbers in every block: their bits say where it is.
        bits = out.logits.max(axis=-1, keepdims=True).view(mx.uint32)
        size = mx.where(bits % ONE_IN == 0, RARE, USUAL) * math.cos(tokens.shape[1] + self.phase)
        odd = mx.arange(out.logits.shape[-1]) % 2
        return Forward(out.logits + size * odd, out.hidden)


def noisy(model: SpeculativeModel | None = None) -> verify.VerificationTarget:
    """A model that rounds so, as mlx-lm's own does; each even token is as good as the next one.

    The noise was measured where no place is a bad one.
    """
    rounding = Rounding(with_ties().model)
    verifying = subject(model or rounding, rounding, tokens=12)
    vars(verifying)["rounding"] = verify.Rounding(2 * USUAL)
    return verifying


def again(results: Sequence[Result]) -> list[Difference]:
    """What was looked at again."""
    return [d for result in results for d in result.differences if d.spread is not None]


def test_rare_rounding_is_no_bug() -> None:
    verifying = noisy()
    found = verified(verifying, "rewind", "sequence")
    found["seed"] = [verify.check_seed(verifying, seed=2)]
    assert not wrong(found)
    for check, results in found.items():
        assert (seen := again(results)), check
        assert all(4 * USUAL < d.size < 2 * RARE and d.kind == "numerics" for d in seen)
        assert all(RARE < (d.spread or 0) < 2 * RARE for d in seen)
    (rewind,) = found["rewind"]
    seen = again([rewind])
    assert (
        f"; {len(seen)} rechecked: mlx-lm's own logits differ there by up to 0.9"
        in rewind.summary()
    )
    assert len(seen) < len(rewind.differences) / 2


def test_mlx_lms_text_is_looked_at_again() -> None:
    (found, *_) = verified(noisy(Rounding(with_ties().model, phase=1.0)), "sequence")["sequence"]
    assert found.outcome == "NUMERICS"
    assert {d.detail.partition(":")[0] for d in again([found])} == {"mlx-lm"}


def test_a_mistake_is_a_bug_where_rounding_is_rare_and_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    wrongly = noisy(InBlocks(Rounding(with_ties().model), mx.negative))
    found = verified(wrongly, "rewind", "sequence", "seed")
    assert wrong(found) == {"rewind", "sequence", "seed"}
    keep = CacheGroup.keep
    monkeypatch.setattr(CacheGroup, "keep", lambda self, m: keep(self, min(m + 1, self.fed())))
    found = verified(noisy(), "rewind")
    bugs = [d for d in again(found["rewind"]) if d.kind == "bug"]
    assert len(bugs) > found["rewind"][0].compared / 2
    assert "; mlx-lm's own logits differ by up to " in bugs[0].line()


def test_what_is_far_apart_elsewhere_explains_nothing_here() -> None:
    """A mistake that would be lost in what rounding does at a bad place, and is seen at others."""
    small = InBlocks(Rounding(with_ties().model), lambda logits: logits + 10 * USUAL)
    seen = again(verified(noisy(small), "rewind")["rewind"])
    spreads = {
        kind: [d.spread or 0 for d in seen if d.kind == kind] for kind in ("numerics", "bug")
    }
    assert min(spreads["numerics"]) > RARE and max(spreads["bug"]) < 2.1 * USUAL
    assert len(spreads["bug"]) > len(spreads["numerics"])


def test_where_nothing_rounds_there_is_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.VerificationTarget, "spread", lambda *_: pytest.fail("looked again"))
    model = InBlocks(get("shallow").model, second_best)
    found = verified(subject(model, get("shallow").stock, tokens=3), "rewind", "sequence")
    assert wrong(found) == {"rewind", "sequence"}
    assert not again([*found["rewind"], *found["sequence"]])
