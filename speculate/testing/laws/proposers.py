"""What a proposer must do: the laws of `Proposer`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx

from speculate.protocols import CatchesUp, Choice, Verdict
from speculate.strategies.checking import checked_behind
from speculate.testing.broken import at, law, require
from speculate.testing.drafts import Watching, checked, near_tie, same_rows
from speculate.testing.kinds import PartFailedError
from speculate.testing.telling import Telling, Told

DEPTH: Final = 4
OTHER: Final = "somebody else"


@law
def drafts_are_ids_within_the_limit(telling: Telling) -> None:
    """Of every depth, at every place, from the first token on; shorter is allowed, even empty."""
    told = telling.fresh()
    for position in range(12):
        for depth in (1, 1 + 2 * position % 9):
            shown = Watching()
            told.draft(depth, shown)
            told.commit(1 + position % 4, known=False)
            with at(told.rounds, told.position):
                expected = list(range(len(shown.indices)))
                require(shown.indices == expected, f"asks for drafts number {shown.indices}")
                one_row = all(r.ndim == 2 and r.shape[0] == 1 for r in shown.rows)
                require(one_row, "shows more than one row of logits at a time")


@law
def drafts_depend_on_the_text_alone(telling: Telling) -> None:
    """Not on what was rejected, nor on who drafted in between: a fresh proposer drafts the same."""
    for seed in range(3):
        dice = random.Random(seed)
        told = telling.fresh()
        told.read(dice.choice((1, 5, 12)), dice.choice((1, 3, 100)))
        while told.position < 50:
            for _ in range(dice.randint(1, 6)):
                _any_round(told, dice)
            _same_as_fresh(telling, told)
            told.commit(1, Verdict(told.proposer.name, DEPTH, 0))


def _any_round(told: Told, dice: random.Random) -> None:
    """A round of its own, of somebody else's, of nobody's, or a pause."""
    depth = dice.choice((1, 2, 4, 7))
    right = dice.randint(0, depth)
    match dice.randrange(5):
        case 0 | 1:
            told.round(depth, right)
        case 2:
            told.commit(1 + right, Verdict(OTHER, depth, right))
        case 3:
            told.commit(1, known=dice.random() < 0.5)
        case _:
            told.proposer.settle()


def _same_as_fresh(telling: Telling, told: Told, start: int = 0) -> None:
    """Ask it, and one that was told the same text in one piece."""
    expected, rows = telling.ideal(start, told.position, DEPTH)
    shown = Watching()
    drafted = told.draft(DEPTH, shown)
    # Behind a near tie that rounding decided, two chains go on from other tokens.
    count = near_tie(drafted, expected, rows, telling.tolerance)
    with at(told.rounds, told.position):
        same = drafted[:count] == expected[:count]
        require(same, f"drafts {drafted}, and a fresh one {expected}")
        stop = None if count is None else count + 1
        same = same_rows(shown.rows[:stop], rows[:stop], telling.tolerance)
        require(same, "picks from other logits than a fresh one")


@law
def a_prompt_may_come_in_any_chunks(telling: Telling) -> None:
    """Token by token, in blocks, or whole."""
    for length in (1, 2, 11, 30):
        for chunk in {1, 3, 4, length - 1, length} - {0}:
            told = telling.fresh()
            told.read(length, chunk)
            _same_as_fresh(telling, told)


@law
def settling_ends_a_draft_and_nothing_else(telling: Telling) -> None:
    """In the middle of a draft, twice, before anything was told: the text goes on."""
    told = telling.fresh()
    told.proposer.settle()
    told.read(9)
    for known in (True, False):
        told.draft(DEPTH)
        told.proposer.settle()
        told.proposer.settle()
        with at(told.rounds, told.position):
            found = told.proposer.position()
            require(found == told.position, f"says that it is at {found}")
        told.commit(3, known=known)
        _same_as_fresh(telling, told)
        told.commit(1, Verdict(told.proposer.name, DEPTH, 0))
        told.proposer.settle()
    _same_as_fresh(telling, told)


@law
def begin_forgets_everything(telling: Telling) -> None:
    """Another text, or the same one from another place, with a draft in flight or without."""
    told = telling.fresh()
    told.read(30)
    for start in (0, 7, 0, 21):
        told.draft(DEPTH)
        told.begin(start)
        with at(told.rounds, start):
            found = told.proposer.position()
            require(found == start, f"says that it is at {found} after begin({start})")
        told.read(12, 5)
        told.round(DEPTH, 2)
        _same_as_fresh(telling, told, start)
        told.commit(1, Verdict(told.proposer.name, DEPTH, 0))


@law
def what_is_drawn_is_what_choose_gave(telling: Telling) -> None:
    """A token that was picked by `choose` comes with the law that `choose` gave for it."""
    told = telling.fresh()
    told.read(30)
    given: list[Choice] = []

    def choose(logits: mx.array, index: int) -> Choice:
        token = mx.array([(7 * index + 3) % logits.shape[1]], dtype=mx.uint32)
        given.append(Choice(token, mx.full(logits.shape, -float(index))))
        return given[-1]

    newest = mx.array([telling.text[told.position]], dtype=mx.uint32)
    draft = told.proposer.propose(newest, DEPTH, choose)
    ids = checked(told.proposer, draft, DEPTH, telling.target)
    laws = draft.laws or [None] * len(ids)
    for index, (id_, one) in enumerate(zip(ids, laws, strict=True)):
        with at(index, told.position + 1 + index):
            fits = [c for c in given if c.law is one]
            require(one is None or bool(fits), "gives a law that choose did not give")
            drawn = one is None or fits[0].token.item() == id_
            require(drawn, f"drafts {id_} with the law that another token was drawn from")
            if given:
                require(one is not None, f"forgets the law that {id_} was drawn from")


@law
def random_numbers_are_left_alone(telling: Telling) -> None:
    """Nobody's seed gives another text because somebody drafted."""
    told = telling.fresh()
    mx.random.seed(5)
    before, pythons = _states(), random.getstate()
    told.read(20)
    told.round(DEPTH, 2)
    told.draft(DEPTH)
    told.proposer.settle()
    same = all(bool(mx.array_equal(a, b)) for a, b in zip(before, _states(), strict=True))
    require(same, "draws from mx.random")
    require(random.getstate() == pythons, "draws from random")


def _states() -> Sequence[mx.array]:
    return [mx.array(state) for state in cast("list[mx.array]", mx.random.state)]


@law
def a_failure_in_between_leaves_it_in_step(telling: Telling) -> None:
    """`choose` raises, at any draft: the next drafts are those of the text."""
    for failing in range(DEPTH):
        told = telling.fresh()
        told.read(20)

        def choose(logits: mx.array, index: int, failing: int = failing) -> Choice:
            if index == failing:
                raise PartFailedError
            return Choice(mx.argmax(logits, axis=-1))

        newest = mx.array([telling.text[told.position]], dtype=mx.uint32)
        try:
            told.proposer.propose(newest, DEPTH, choose)
        except PartFailedError:
            told.proposer.settle()
        told.commit(2)
        _same_as_fresh(telling, told)


@law
def how_far_it_is_behind_is_told(telling: Telling) -> None:
    """Of one that takes in what it missed only when asked: no more than it missed, and then 0."""
    for read in (1, 30, 60):
        told = telling.fresh()
        if not isinstance(told.proposer, CatchesUp):
            return
        told.read(read)
        behind = checked_behind(told.proposer, told.proposer.behind())
        require(behind <= read, f"is {behind} tokens behind in a text of {read}")
        _same_as_fresh(telling, told)
        told.commit(1, Verdict(told.proposer.name, DEPTH, 0))
        behind = told.proposer.behind()
        require(not behind, f"drafted, and is still {behind} tokens behind")
