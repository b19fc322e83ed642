"""What rounding can explain, and what only a mistake can."""

from __future__ import annotations

import math
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.testing.verify.results import Difference, Kind

DIGITS: Final = {mx.float64: 52, mx.float32: 23, mx.float16: 10, mx.bfloat16: 7}
"""Bits of a number behind the first one."""

ULPS: Final = 2.0
"""What two numbers that are each rounded once more, or once less, can be apart."""

MARGIN: Final = 2.0
"""How many times what mlx-lm's own model was seen to differ by is still taken for rounding."""


def ulp(value: float, dtype: mx.Dtype) -> float:
    """A unit in the last place: from a number to the next one of its dtype."""
    return 2.0 ** (math.frexp(value)[1] - 1 - DIGITS[dtype])


@final
@attrs.frozen
class Rounding:
    """Tells rounding from mistakes.

    Attributes:
        noise: How far mlx-lm's own logits of the same text were apart on this machine, fed in
            blocks and one by one. 0 where the width of a block makes no difference.
    """

    noise: float = 0.0

    def kind(self, size: float, unit: float) -> Kind:
        """What a difference means.

        Args:
            size: How far apart two logits are.
            unit: A unit in the last place of theirs.
        """
        if size == 0:
            return "tie"
        return "numerics" if size <= max(ULPS * unit, MARGIN * self.noise) else "bug"

    def compare(
        self, found: mx.array, expected: mx.array, position: int, what: str
    ) -> list[Difference]:
        """Rows of logits `(T, vocabulary)` that differ.

        Args:
            found: As computed.
            expected: As it ought to be.
            position: In the text, of the first row.
            what: Was computed.
        """
        if found.shape != expected.shape or found.dtype != expected.dtype:
            shapes = f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
            return [Difference(position, math.inf, None, "bug", f"{what}: {shapes}")]
        if bool(mx.array_equal(found, expected)):
            return []
        sizes, largest = apart(found, expected), _largest(expected)
        differences = []
        for row, (size, top) in enumerate(zip(sizes, largest, strict=True)):
            if size != 0:
                unit = ulp(top, expected.dtype)
                kind = self.kind(size, unit)
                differences.append(Difference(position + row, size, size / unit, kind, what))
        return differences


def apart(found: mx.array, expected: mx.array) -> list[float]:
    """How far apart two arrays `(T, n)` are in each row, at the worst; infinite for no number."""
    size = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32))
    size = mx.where(found == expected, 0.0, mx.where(mx.isnan(size), math.inf, size))
    return cast("list[float]", size.max(axis=-1).tolist())


def _largest(rows: mx.array) -> list[float]:
    """The largest finite number of each row."""
    finite = mx.where(mx.isfinite(rows), mx.abs(rows.astype(mx.float32)), 0.0)
    return cast("list[float]", finite.max(axis=-1).tolist())
