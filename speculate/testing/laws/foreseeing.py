"""What a proposer must do that knows its drafts beforehand: the law of `Foresees`."""

from __future__ import annotations

from speculate.protocols import Foresees, Verdict
from speculate.strategies.checking import checked_hindsight, checked_outlook
from speculate.testing.broken import law, require
from speculate.testing.laws.proposers import OTHER
from speculate.testing.telling import LENGTH, Telling


@law
def what_is_foreseen_depends_on_the_text_alone(telling: Telling) -> None:
    """Of one that knows its drafts beforehand: the outlook, and what past ones were worth."""
    found = []
    for step in (1, 3, 7):
        told = telling.fresh()
        if not isinstance(told.proposer, Foresees):
            return
        told.read(20)
        worth: dict[tuple[int, int], tuple[int, int]] = {}
        while told.position < LENGTH - 10:
            told.commit(min(step, LENGTH - 10 - told.position), Verdict(OTHER, step, step - 1))
            checked_outlook(told.proposer, told.proposer.outlook())
            for one in checked_hindsight(told.proposer, told.proposer.hindsight()):
                compared, right = worth.get((one.kind, one.position), (0, 0))
                worth[one.kind, one.position] = (compared + one.compared, right + one.right)
        found.append((told.proposer.outlook(), worth))
    require(found[0] == found[1] == found[2], "differs with the rounds in which the text came")
