"""How likely it is that counts come out so far from what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

FEW: Final = 10.0
"""Outcomes that are expected less often are counted together."""


def chi_square(pairs: Iterable[tuple[float, float]]) -> float:
    """Chance of counts at least as far off.

    Args:
        pairs: How often each outcome was seen, and how often it was expected.
    """
    cells: list[tuple[float, float]] = []
    seen = expected = 0.0
    for count, mean in sorted(pairs, key=lambda pair: pair[1]):
        seen, expected = seen + count, expected + mean
        if expected >= FEW:
            cells.append((seen, expected))
            seen = expected = 0.0
    if expected and cells:
        cells[-1] = (cells[-1][0] + seen, cells[-1][1] + expected)
    if len(cells) < 2:
        return 1.0
    return survival(sum((s - e) ** 2 / e for s, e in cells), len(cells) - 1)


def survival(statistic: float, freedom: int) -> float:
    """Chance that a chi-square variable of so many degrees of freedom exceeds a statistic."""
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = 0
        while term > total * 1e-15:
            n += 1
            term *= x / (a + n)
            total += term
        return max(0.0, 1 - front * total)
    # The continued fraction of the upper incomplete gamma function, by Lentz's method.
    b = x + 1 - a
    c, d = 1e300, 1 / b
    value = d
    for n in range(1, 10_000):
        factor = -n * (n - a)
        b += 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value
