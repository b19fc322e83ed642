"""How many drafts are likely to be accepted, learned from rounds and decayed over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from speculate.protocols import Outlook

SLOW_DECAY: Final = 0.98
"""Decay of older evidence per new comparison at a position. Lower adapts faster."""

FAST_DECAY: Final = 0.85
"""Decay of the fast average that detects a change of regime, per comparison."""

CHANGE_THRESHOLD: Final = 0.4
"""Difference between fast and slow acceptance rate at which a position is learned anew."""

RESET_WEIGHT: Final = 6.0
"""Weight of the fast average after a change of regime, in comparisons."""

MEMORY_TOKENS: Final = 400.0
"""Tokens after which evidence decays to 1/e, even without new comparisons."""

PRIOR_WEIGHT: Final = 3.0
"""Weight of the prior of a first draft, in comparisons."""

NEIGHBOUR_WEIGHT: Final = 10.0
"""Weight of the previous position in the rate of a position, in comparisons."""

DEPTH_DECAY: Final = 0.95
"""Acceptance rate of a position without evidence, relative to the previous position.

Copies differ; see `AcceptanceCurve`.
"""

DECAY_INTERVAL_TOKENS: Final = 8
"""Tokens between two decays of the evidence.

Rates change by a fiftieth in that time, so they need not be computed for every round.
"""

MIN_COPY_END_RATE: Final = 0.08
"""Lowest rate at which a copy is assumed to end at a position without evidence."""

ONSET_LEARNING_RATE: Final = 0.05
"""Weight of the latest position in the probability of a match onset."""

MIN_ONSET_AFTER_COPY: Final = 0.1
"""Lowest probability of a match onset right after a copy ended.

After an edited passage, the output usually returns to what it was copying.
"""


@final
class AcceptanceCurve:
    """Probability that the first 1, 2, ... drafts of a proposer are all accepted.

    Keeps for each position the acceptance rate of drafts that were right up to there. A draft
    is no evidence for positions after its first mistake or after its end. A position with little
    evidence is assumed to be like the previous one. When the latest drafts no longer fit the
    learned rate, the rate is learned anew.

    If a draft is a copy, each right token makes the match one token longer, and longer matches
    are more likely to continue: with little data, a 1/n miss rate is assumed after an n-token
    match, but at least `MIN_COPY_END_RATE`.

    Args:
        prior: See below.
        match_length: Tokens before the draft that match what it copies; 0 if it is no copy.

    Attributes:
        prior: Acceptance rate of a first draft without evidence. May be set at any time.
    """

    def __init__(self, prior: float, match_length: int = 0) -> None:
        self.prior = prior
        self._match_length = match_length
        self._right: list[float] = []
        self._compared: list[float] = []
        self._fast: list[float] = []
        self._passed = 0  # tokens since the last decay
        # Results until the evidence changes, by depth, optimism and prior.
        self._survival: dict[tuple[int, float, float], Sequence[float]] = {}

    @property
    def evidence(self) -> float:
        """Number of first drafts that were compared, after decay."""
        self._decay(DECAY_INTERVAL_TOKENS)
        return self._compared[0] if self._compared else 0.0

    def observe(self, compared: int, right: int) -> None:
        """Learn from a draft.

        Args:
            compared: Number of its tokens that were compared with the sequence.
            right: Number of leading tokens that were right.
        """
        for position in range(min(right + 1, compared)):
            self.update(position, 1, int(position < right))

    def update(self, position: int, compared: int, right: int) -> None:
        """Learn from drafts that were right before `position`.

        Args:
            position: 0 for the first token of a draft.
            compared: Number of drafts whose token at `position` was compared.
            right: Number of them that were right there, too.
        """
        if not compared:
            return
        self._decay()
        while position >= len(self._compared):
            self._compared.append(0.0)
            self._right.append(0.0)
            self._fast.append(right / compared)
        keep = SLOW_DECAY**compared
        total = self._compared[position] * keep + compared
        hits = self._right[position] * keep + right
        fast = self._fast[position]
        fast += (1.0 - FAST_DECAY**compared) * (right / compared - fast)
        if total > RESET_WEIGHT and abs(fast - hits / total) > CHANGE_THRESHOLD:
            total, hits = RESET_WEIGHT, RESET_WEIGHT * fast
        self._compared[position], self._right[position] = total, hits
        self._fast[position] = fast
        self._survival.clear()

    def advance(self, tokens: int) -> None:
        """The sequence grew by `tokens`."""
        # Decayed lazily: every curve is advanced each round, and few are read before the next.
        self._passed += tokens

    def discount(self, most: float) -> None:
        """Limit the evidence at each position to `most` comparisons."""
        self._decay()
        for position, compared in enumerate(self._compared):
            if compared > most:
                self._right[position] *= most / compared
                self._compared[position] = most
        self._survival.clear()

    def survival(self, depth: int, optimism: float = 0.0) -> Sequence[float]:
        """`S_1 ... S_depth`: probabilities that so many leading drafts are all accepted.

        Args:
            depth: Number of drafts.
            optimism: Standard deviations to add to the rate of each position.
        """
        self._decay(DECAY_INTERVAL_TOKENS)
        key = (depth, optimism, self.prior)
        if key not in self._survival:
            self._survival[key] = self._computed(depth, optimism)
        return self._survival[key]

    def _decay(self, interval: int = 1) -> None:
        """Decay the evidence if at least `interval` tokens have passed."""
        if self._passed < interval:
            return
        keep = math.exp(-self._passed / MEMORY_TOKENS)
        self._right = [right * keep for right in self._right]
        self._compared = [compared * keep for compared in self._compared]
        self._passed = 0
        self._survival.clear()

    def _computed(self, depth: int, optimism: float) -> Sequence[float]:
        survival: list[float] = []
        product, rate, weight = 1.0, self.prior, PRIOR_WEIGHT
        known, match_length = len(self._compared), self._match_length
        for position in range(depth):
            right, compared = weight * rate, weight
            if position < known:
                right += self._right[position]
                compared += self._compared[position]
            rate = hopeful = right / compared
            if optimism and rate < 1.0:
                hopeful += optimism * math.sqrt(rate * (1.0 - rate) / (compared + 1.0))
                hopeful = 1.0 if hopeful > 1.0 else hopeful
            product *= hopeful
            survival.append(product)
            if match_length:
                wrong = (1.0 - rate) * match_length / (match_length + 1)
                rate = 1.0 - (wrong if wrong > MIN_COPY_END_RATE else MIN_COPY_END_RATE)
                match_length += 1
            else:
                rate *= DEPTH_DECAY
            weight = NEIGHBOUR_WEIGHT
        return survival


@final
class MatchOnset:
    """How often a lookup finds a match at a position after one without a match.

    A plain round is launched before the last token is read. A match that begins at that token is
    then found too late, unless the lookup is asked without a forecast.

    Attributes:
        probability: That there is a match at the next position if there is none now.
        kind: Kind of the latest draft at a match onset; see `Outlook`.
    """

    def __init__(self) -> None:
        self.probability: float = 0.0
        self.kind: int = 0
        self._found = False

    def on_copy_end(self) -> None:
        """A draft was accepted in part."""
        self.probability = max(self.probability, MIN_ONSET_AFTER_COPY)

    def observe(self, outlook: Outlook, *, plain: bool) -> None:
        """Learn from the present position.

        Args:
            outlook: The forecast after all known tokens.
            plain: Whether the sequence grew by a single token.
        """
        found = outlook.length > 0
        if plain and not self._found:
            self.probability += ONSET_LEARNING_RATE * (found - self.probability)
            if found:
                self.kind = outlook.kind
        self._found = found
