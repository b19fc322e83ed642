"""Medians, and how far measurements lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import final

import attrs


@final
@attrs.frozen
class Spread:
    """What is left of a measurement that was repeated.

    Attributes:
        median: The middle one.
        low: Lower quartile.
        high: Upper quartile.
        error: Standard error of the median, by that of a mean; 0 of a single one.
        count: Repeats.
    """

    median: float
    low: float
    high: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        low, middle, high = _quartiles(values)
        # A normal law's quartiles are 1.349 deviations apart, and the median's error is
        # sqrt(pi / 2) of the mean's.
        deviation = (high - low) / 1.349
        error = math.sqrt(math.pi / 2 / len(values)) * deviation
        return cls(middle, low, high, error, len(values))

    def __str__(self) -> str:
        # Of a single measurement nobody knows how far it is off.
        return f"{self.median:.3f}" + (f" +- {self.error:.3f}" if self.count > 1 else "")


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
