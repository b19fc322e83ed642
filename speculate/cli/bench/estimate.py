"""How long a benchmark takes: from short texts on this machine, then from those that are done."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from statistics import fmean
from typing import final


@final
class Estimate:
    """What is left of a benchmark, in seconds.

    Args:
        ways: Names of the ways of decoding.
        texts: Texts to decode in each of them.
        tokens: Of each text, at most.
    """

    def __init__(self, ways: Collection[str], texts: int, tokens: int) -> None:
        self._left = dict.fromkeys(ways, texts)
        self._tokens = tokens
        self._expected: dict[str, float] = {}
        self._taken: dict[str, list[float]] = {}

    def pilot(self, way: str, tokens: int, seconds: float, rounds: float) -> None:
        """Take in a short text that is not one of the benchmark's; of several the fastest counts.

        Args:
            way: How it was decoded.
            tokens: That came out.
            seconds: That it took in all.
            rounds: Seconds of these that grow with the tokens; the others come once a text.
        """
        expected = seconds - rounds + rounds / tokens * self._tokens
        self._expected[way] = min(expected, self._expected.get(way, inf))

    def done(self, way: str, seconds: float) -> None:
        """Take in a text of the benchmark, and what it took in all."""
        self._left[way] -= 1
        self._taken.setdefault(way, []).append(seconds)

    def left(self) -> float | None:
        """Seconds until the last text is decoded; `None` before every way had its short one."""
        if self._left.keys() != self._expected.keys():
            return None
        return sum(texts * self._each(way) for way, texts in self._left.items())

    def _each(self, way: str) -> float:
        taken = self._taken.get(way)
        return fmean(taken) if taken else self._expected[way]
