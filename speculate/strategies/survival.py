"""How far drafts get, learned from rounds and forgotten again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

KEPT: Final = 0.98
"""What a comparison counts for when the next one at its position comes."""

LATELY: Final = 0.85
"""The same for a second average, of what came last."""

PARTED: Final = 0.4
"""How far apart the two averages may be before the text counts as another one."""

ANEW: Final = 6.0
"""Comparisons that what came last counts for, then; what was before is forgotten."""

MEMORY: Final = 400.0
"""Tokens of text after which what was seen counts 1/e, also where nothing new came."""

PRIOR_WEIGHT: Final = 3.0
"""Comparisons that the first guess counts for."""

CARRIED: Final = 10.0
"""Comparisons that the position in front counts for, where there are few of its own."""

DEEPER: Final = 0.95
"""Chance of a position that was never seen, relative to the one in front of it; of copies see
`Survival`."""

STALE: Final = 8
"""Tokens of text that may pass before what was seen fades: what is expected changes by a fiftieth
in that time, and need not be worked out anew for every round."""

EDITED: Final = 0.08
"""Chance that a copy ends at a position that was never seen, at the least: no copy is endless."""


@final
class Survival:
    """Chances that the first 1, 2, ... drafts of a proposer are all right.

    Keeps for each position how often a draft that came so far was right there. A draft says
    nothing about the positions behind its first mistake, and one that was right throughout
    nothing about deeper ones. A position that has seen little is taken to be like the one in
    front of it. When what comes no longer fits what was learned, learning begins anew.

    Where a draft is a copy, each token of it that is right is one more that agrees, and the
    more agree the likelier is the next one to: behind `n` of them one in `n` is wrong, as far as
    nothing else is known, but no fewer than `EDITED`.

    Args:
        prior: Chance that a first draft is right, before any was seen.
        agreed: Tokens in front of a draft that agree with what it copies; 0 where it is no copy.
    """

    def __init__(self, prior: float, agreed: int = 0) -> None:
        self._prior = prior
        self._agreed = agreed
        self._right: list[float] = []
        self._seen: list[float] = []
        self._lately: list[float] = []
        self._passed = 0  # tokens of text that are not forgotten by yet
        self._chances: dict[tuple[int, float], Sequence[float]] = {}  # until something is learned

    @property
    def prior(self) -> float:
        """Chance that a first draft is right, before any was seen. It may change at any time."""
        return self._prior

    @prior.setter
    def prior(self, prior: float) -> None:
        if prior != self._prior:
            self._prior = prior
            self._chances.clear()

    @property
    def seen(self) -> float:
        """First drafts that were compared with the text, as far as they are not forgotten."""
        self._fade(STALE)
        return self._seen[0] if self._seen else 0.0

    def observe(self, compared: int, right: int) -> None:
        """Learn from a draft.

        Args:
            compared: Tokens of it that were compared with the text.
            right: Leading ones that were right.
        """
        for position in range(min(right + 1, compared)):
            self.note(position, 1, int(position < right))

    def note(self, position: int, compared: int, right: int) -> None:
        """Learn from drafts that were right in front of `position`.

        Args:
            position: 0 for the first token of a draft.
            compared: Drafts whose token there was compared with the text.
            right: How many of them were right there, too.
        """
        if not compared:
            return
        self._fade()
        while position >= len(self._seen):
            self._seen.append(0.0)
            self._right.append(0.0)
            self._lately.append(right / compared)
        keep = KEPT**compared
        seen = self._seen[position] * keep + compared
        hits = self._right[position] * keep + right
        lately = self._lately[position]
        lately += (1.0 - LATELY**compared) * (right / compared - lately)
        if seen > ANEW and abs(lately - hits / seen) > PARTED:
            seen, hits = ANEW, ANEW * lately
        self._seen[position], self._right[position] = seen, hits
        self._lately[position] = lately
        self._chances.clear()

    def forget(self, tokens: int) -> None:
        """The text went on by so many tokens."""
        # Every kind of draft hears of every round, and few are looked at before the next.
        self._passed += tokens

    def trust_less(self, most: float) -> None:
        """What was seen at a position counts for so many comparisons at most."""
        self._fade()
        for position, seen in enumerate(self._seen):
            if seen > most:
                self._right[position] *= most / seen
                self._seen[position] = most
        self._chances.clear()

    def _fade(self, passed: int = 1) -> None:
        """Once so many tokens have passed."""
        if self._passed < passed:
            return
        keep = math.exp(-self._passed / MEMORY)
        self._right = [right * keep for right in self._right]
        self._seen = [seen * keep for seen in self._seen]
        self._passed = 0
        self._chances.clear()

    def chances(self, depth: int, optimism: float = 0.0) -> Sequence[float]:
        """`S_1 ... S_depth`: chances that so many leading drafts are all right.

        Args:
            depth: Drafts.
            optimism: Standard deviations to add to what was learned of each position.

        Returns:
            The same object, as long as nothing else is to be expected.
        """
        self._fade(STALE)
        found = self._chances.get((depth, optimism))
        if found is None:
            found = self._chances[depth, optimism] = self._expected(depth, optimism)
        return found

    def _expected(self, depth: int, optimism: float) -> Sequence[float]:
        chances: list[float] = []
        product, expected, weight = 1.0, self._prior, PRIOR_WEIGHT
        known, agreed = len(self._seen), self._agreed
        for position in range(depth):
            right, seen = weight * expected, weight
            if position < known:
                right += self._right[position]
                seen += self._seen[position]
            expected = hazard = right / seen
            if optimism and expected < 1.0:
                hazard += optimism * math.sqrt(expected * (1.0 - expected) / (seen + 1.0))
                hazard = 1.0 if hazard > 1.0 else hazard
            product *= hazard
            chances.append(product)
            if agreed:
                wrong = (1.0 - expected) * agreed / (agreed + 1)
                expected = 1.0 - (wrong if wrong > EDITED else EDITED)
                agreed += 1
            else:
                expected *= DEEPER
            weight = CARRIED
        return chances
