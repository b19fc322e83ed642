"""What a check finds: every place where two ways of computing disagree, and what that means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, final

import attrs

Outcome = Literal["OK", "NUMERICS", "BUG"]
"""All equal; rounded differently; or wrong."""

Kind = Literal["tie", "numerics", "bug"]
"""Of a difference: two tokens exactly as good, a matter of rounding, or a mistake."""

WORDS: Final[dict[Kind, str]] = {
    "tie": "exact ties",
    "numerics": "within rounding",
    "bug": "wrong",
}


@final
@attrs.frozen
class Difference:
    """A place where something is not what it ought to be.

    Attributes:
        position: In the text, in tokens.
        size: How far off: of logits, between the scores of two tokens, or in accepted drafts.
            Infinite where there is no telling.
        ulps: The same in units in the last place of the logits' dtype; `None` where what
            differs is no logit.
        kind: What it means.
        detail: What was found, and what was expected.
        spread: How far mlx-lm's own logits are apart at this place, fed in a dozen ways; `None`
            where there was no second look.
    """

    position: int
    size: float
    ulps: float | None
    kind: Kind
    detail: str
    spread: float | None = None

    def line(self) -> str:
        """For people."""
        line = f"position {self.position}: {self.detail}{self.apart(': ', ' apart')}"
        return line if self.spread is None else f"{line}; mlx-lm's own up to {self.spread:.3g}"

    def apart(self, before: str, behind: str = "") -> str:
        """How far off, in words, between others; nothing where it is not a matter of how far."""
        if self.ulps is None:
            return ""
        return f"{before}{self.size:.3g} ({self.ulps:.3g} ULP){behind}"


@final
@attrs.frozen
class Result:
    """What a check found.

    Attributes:
        compared: Rows, tokens or rounds that were compared.
        unit: Which of these.
        differences: Where they differ, in order.
        note: What else was measured.
    """

    compared: int
    unit: str
    differences: Sequence[Difference] = ()
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        """The worst that was found."""
        kinds = {difference.kind for difference in self.differences}
        return "BUG" if "bug" in kinds else "NUMERICS" if kinds else "OK"

    def figure(self) -> str:
        """What was found, in a line."""
        found = f"{counted(self.compared, self.unit)}, {self._differing()}"
        return f"{found}; {self.note}" if self.note else found

    def _differing(self) -> str:
        if not self.differences:
            return "all equal" if self.compared else "nothing to compare"
        counts = Counter(difference.kind for difference in self.differences)
        kinds = ", ".join(
            f"{counts[kind]} {words}" for kind, words in WORDS.items() if counts[kind]
        )
        worst = max(self.differences, key=lambda difference: difference.size)
        found = f"{len(self.differences)} not equal ({kinds}){worst.apart(', by up to ')}"
        spreads = [one.spread for one in self.differences if one.spread is not None]
        if not spreads:
            return found
        own = f"mlx-lm's own are up to {max(spreads):.3g} apart there"
        return f"{found}; {len(spreads)} looked at again: {own}"


def counted(count: int, unit: str) -> str:
    """So many of something.

    Args:
        count: How many.
        unit: Its name for several.
    """
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"
