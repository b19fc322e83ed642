"""Differences between two computations, and whether rounding explains them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, cast, final

import attrs
import mlx.core as mx

from speculate._mx import row_differences, ulp

Outcome = Literal["OK", "NUMERICS", "BUG"]
"""Verdict of a check: all equal, different within rounding, or wrong."""

Kind = Literal["tie", "numerics", "bug"]
"""Cause of a difference: two tokens with equal scores, rounding, or a mistake."""

NOISE_MARGIN: Final = 2.0
"""Multiple of the noise measured on mlx-lm's own model that still counts as rounding."""


@final
@attrs.frozen
class Difference:
    """A position at which the result is not the expected one.

    Attributes:
        position: Token position in the sequence, from 0.
        size: Absolute difference of two logits, of the scores of two tokens, or of two counts of
            accepted drafts. Infinite where it cannot be measured.
        ulps: `size` in units in the last place of the logits' dtype; `None` where the compared
            values are not logits.
        kind: Cause of the difference.
        detail: What was found and what was expected.
        spread: Largest difference among mlx-lm's own logits at this position, fed in a dozen
            ways; `None` where the difference was not rechecked.
    """

    position: int
    size: float
    ulps: float | None
    kind: Kind
    detail: str
    spread: float | None = None

    def line(self) -> str:
        """The difference in one line of a report."""
        line = f"position {self.position}: {self.detail}{self.magnitude(', off by ')}"
        if self.spread is None:
            return line
        return f"{line}; mlx-lm's own logits differ by up to {self.spread:.3g}"

    def magnitude(self, prefix: str) -> str:
        """`size` and `ulps` after a prefix; empty where `ulps` is `None`."""
        return "" if self.ulps is None else f"{prefix}{self.size:.3g} ({self.ulps:.3g} ULP)"


@final
@attrs.frozen
class Result:
    """Result of one check.

    Attributes:
        compared: Number of comparisons.
        unit: What was compared, in the plural: rows, tokens, rounds or runs.
        differences: Every difference, in order.
        note: Further figures for the report.
    """

    compared: int
    unit: str
    differences: Sequence[Difference] = ()
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        """The worst kind of difference found."""
        kinds = {difference.kind for difference in self.differences}
        return "BUG" if "bug" in kinds else "NUMERICS" if kinds else "OK"

    def summary(self) -> str:
        """The result in one line."""
        found = f"{counted(self.compared, self.unit)}, {self._differing()}"
        return f"{found}; {self.note}" if self.note else found

    def _differing(self) -> str:
        if not self.differences:
            return "all equal" if self.compared else "nothing to compare"
        counts = Counter(difference.kind for difference in self.differences)
        labels: dict[Kind, str] = {
            "tie": "exact ties",
            "numerics": "within rounding",
            "bug": "wrong",
        }
        kinds = ", ".join(f"{counts[kind]} {labels[kind]}" for kind in labels if counts[kind])
        worst = max(self.differences, key=lambda difference: difference.size)
        found = f"{len(self.differences)} differ ({kinds}){worst.magnitude(', by up to ')}"
        spreads = [one.spread for one in self.differences if one.spread is not None]
        if not spreads:
            return found
        own = f"mlx-lm's own logits differ there by up to {max(spreads):.3g}"
        return f"{found}; {len(spreads)} rechecked: {own}"


@final
@attrs.frozen
class Rounding:
    """Distinguishes rounding from mistakes.

    Attributes:
        noise: Largest difference on this machine among mlx-lm's own logits of one sequence, fed
            in blocks and token by token. 0 where the width of a block makes no difference.
    """

    noise: float = 0.0

    def kind(self, size: float, unit: float) -> Kind:
        """Classify the absolute difference of two logits; `unit` is 1 ULP of the larger one."""
        if size == 0:
            return "tie"
        # One rounding more or less of each number makes 2 ULP.
        return "numerics" if size <= max(2.0 * unit, NOISE_MARGIN * self.noise) else "bug"

    def compare(
        self, found: mx.array, expected: mx.array, position: int, what: str
    ) -> list[Difference]:
        """Compare logits `(T, vocabulary)`, the first at `position`, row by row. Synchronises.

        Each row that is not equal gives a difference, and so does another shape or dtype. `what`
        says in reports how the logits were computed.
        """
        if found.shape != expected.shape or found.dtype != expected.dtype:
            shapes = f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
            return [Difference(position, math.inf, None, "bug", f"{what}: {shapes}")]
        if bool(mx.array_equal(found, expected)):
            return []
        finite = mx.where(mx.isfinite(expected), mx.abs(expected.astype(mx.float32)), 0.0)
        largest = cast("list[float]", finite.max(axis=-1).tolist())
        differences = []
        for row, size in enumerate(row_differences(found, expected)):
            if size != 0:
                unit = ulp(largest[row], expected.dtype)
                kind = self.kind(size, unit)
                differences.append(Difference(position + row, size, size / unit, kind, what))
        return differences

    def recheck(
        self,
        differences: Sequence[Difference],
        spread: Callable[[], Sequence[float]],
        position: int,
    ) -> list[Difference]:
        """Classify suspected mistakes again by mlx-lm's own rounding at their positions.

        Rounding has a heavy tail: where two router scores of a mixture of experts are nearly
        tied, the last bit decides which expert a token goes to. Samples at other positions do
        not show how far apart the logits are then. So `spread` measures the largest difference
        among mlx-lm's own logits from `position` on, unless there is no suspect or no noise.
        """
        found = list(differences)
        suspects = [n for n, d in enumerate(found) if d.kind == "bug" and math.isfinite(d.size)]
        if self.noise == 0 or not suspects:
            return found
        spreads = spread()
        for n in suspects:
            own = spreads[found[n].position - position]
            kind: Kind = "numerics" if found[n].size <= NOISE_MARGIN * own else "bug"
            found[n] = attrs.evolve(found[n], kind=kind, spread=own)
        return found


def counted(count: int, unit: str) -> str:
    """A number with its unit, given in the plural."""
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"
