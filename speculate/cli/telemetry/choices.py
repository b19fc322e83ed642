"""Who drafted how much over a run, in a few columns however long it gets."""

from __future__ import annotations

from collections import Counter
from typing import Final, final

import attrs

from speculate.protocols import Round

WIDTH: Final = 60
"""Most columns. With twice as many rounds a column stands for twice as many."""

NOBODY: Final = "."
BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "12345678"


@final
@attrs.frozen
class Column:
    """Some rounds in a row.

    Attributes:
        rounds: How many.
        drafted: Tokens that were drafted in them.
        who: How often each proposer did.
    """

    rounds: int
    drafted: int
    who: Counter[str]

    def take(self, other: Column) -> Column:
        """Both together."""
        who = self.who + other.who
        return Column(self.rounds + other.rounds, self.drafted + other.drafted, who)

    @property
    def depth(self) -> float:
        """Tokens drafted in a round, on average."""
        return self.drafted / self.rounds

    @property
    def name(self) -> str:
        """Who drafted most often."""
        return self.who.most_common(1)[0][0] if self.who else NOBODY


@final
class Choices:
    """Who drafted how much over a run.

    Attributes:
        columns: In order; all but the last stand for equally many rounds.
    """

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self._step = 1

    def add(self, round: Round) -> None:
        """Take in a round."""
        who = Counter([] if round.proposer is None else [round.proposer])
        new = Column(1, round.drafted, who)
        if self.columns and self.columns[-1].rounds < self._step:
            self.columns[-1] = self.columns[-1].take(new)
            return
        if len(self.columns) == WIDTH:
            self._step *= 2
            left, right = self.columns[::2], self.columns[1::2]
            self.columns = [one.take(two) for one, two in zip(left, right, strict=True)]
        self.columns.append(new)

    def depths(self, *, ascii_only: bool = False) -> str:
        """How much was drafted: a bar a column, the highest for the most; a dot for nothing."""
        bars, most = ASCII_BARS if ascii_only else BARS, max(c.depth for c in self.columns)
        levels = [c.depth / most if most else 0.0 for c in self.columns]
        return "".join(bars[int(level * 7.999)] if level else NOBODY for level in levels)

    def names(self) -> str:
        """Who drafted most often: the first letter of a name a column, a dot for nobody."""
        return "".join(column.name[:1] for column in self.columns)
