"""Turns, spreads, and the strategy that gives every choice its turns."""

from __future__ import annotations

import itertools
import math

import pytest

import speculate as sp
from benchmarks.prompts import KINDS, prompts
from benchmarks.report import Table
from benchmarks.rotation import ROUNDS, Choice, Rotation
from benchmarks.spread import Spread
from benchmarks.texts import Decoded, Measured, compare, ratio
from benchmarks.turns import Turn, in_turns, rounds, take_turns
from speculate.protocols import Round


def test_every_other_turn_is_in_reverse_order() -> None:
    order = "".join(name for _, name in in_turns(list("ABC"), 3))
    assert order == "ABCCBAABC"


def test_the_first_turn_of_each_does_not_count() -> None:
    tasks = {name: (Turn(number, 1.0) for number in itertools.count()) for name in "AB"}
    found = take_turns(tasks, 2)
    assert {name: [turn.tokens for turn in turns] for name, turns in found.items()} == {
        "A": [1, 2],
        "B": [1, 2],
    }


def test_a_round_ends_with_the_first_token_that_is_no_draft() -> None:
    flags = iter([True, True, False, False, True, False, True, False])
    turns = rounds(flags)
    assert [next(turns).tokens for _ in range(3)] == [3, 1, 2]
    two = rounds(iter([True, False, True, True, False]), 2)
    assert next(two).tokens == 5


def test_a_spread_has_the_middle_and_an_error_that_falls_with_repeats() -> None:
    few = Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert few.median == 3.0
    many = Spread.of([1.0, 2.0, 3.0, 4.0, 100.0] * 4)
    assert math.isclose(many.error, few.error / 2)
    assert Spread.of([2.0]).error == 0.0


def test_a_single_measurement_claims_no_error() -> None:
    assert str(Spread.of([2.0])) == "2.000"
    assert str(Spread.of([2.0, 2.0])) == "2.000 +- 0.000"


def test_a_ratio_is_taken_text_by_text() -> None:
    rates = {"slow": [[1.0, 1.0], [10.0, 10.0]], "fast": [[2.0, 2.0], [20.0, 20.0]]}
    assert ratio(rates, "fast", "slow").median == 2.0
    assert ratio(rates, "fast", "slow").error == 0.0


def test_a_rotation_gives_each_choice_its_rounds_and_leaves_out_the_first() -> None:
    lookup = sp.PromptLookup()
    rotation = Rotation({"off": Choice(None, 0), "lookup": Choice(lookup, 2)}, turns=2)
    depths = []
    while not rotation.done:
        plan = rotation.plan(None)
        depths.append(plan.depth)
        name = "lookup" if plan.proposer else None
        rotation.observe(Round(len(depths), name, plan.depth, 0, 0, 1, False))
    assert rotation.proposers == [lookup]
    assert depths[: 4 * ROUNDS] == [0] * ROUNDS + [2] * 2 * ROUNDS + [0] * ROUNDS
    assert {name: len(of) for name, of in rotation.rounds.items()} == {
        "off": 2 * (ROUNDS - 1),
        "lookup": 2 * (ROUNDS - 1),
    }
    assert all(not round.planned for round in rotation.rounds["off"])


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_have_the_length_that_was_asked_for(kind: str) -> None:
    tokenizer = sp.load_demo("hybrid")[1]
    for length in (96, 2048):
        found = prompts(tokenizer, kind, length, 2)
        assert [len(ids) for ids in found] == [length, length]
        assert found[0] != found[1]
    assert found[0][-64:] == prompts(tokenizer, kind, 192, 1)[0][-64:]


def test_a_comparison_says_whether_texts_differ() -> None:
    def way(*ids: int) -> Measured:
        return lambda prompt, tokens: Decoded(ids, 1.0, len(ids))

    assert compare({"a": way(1, 2), "b": way(1, 2)}, [[0]], 2).same
    assert not compare({"a": way(1, 2), "b": way(1, 3)}, [[0]], 2).same


def test_a_table_lines_its_columns_up() -> None:
    lines = str(Table("Title", [["", "a"], ["long name", "10"]])).splitlines()
    assert lines == ["Title", "", "|           |  a |", "|-----------|----|", "| long name | 10 |"]
