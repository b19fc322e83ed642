"""What is learned from drafts at each position."""

from __future__ import annotations

import copy
import random
from itertools import pairwise

import pytest

from speculate.strategies.acceptance_rates import (
    DECAY_INTERVAL_TOKENS,
    MIN_COPY_END_RATE,
    AcceptanceCurve,
)


def learned(
    hazard: float, depth: int = 4, drafts: int = 400, prior: float = 0.6
) -> AcceptanceCurve:
    """What so many drafts teach, each token of which is right by the same chance."""
    dice = random.Random(1)
    curve = AcceptanceCurve(prior)
    for _ in range(drafts):
        right = 0
        while right < depth and dice.random() < hazard:
            right += 1
        curve.observe(depth, right)
    return curve


@pytest.mark.parametrize("hazard", [0.2, 0.5, 0.8, 0.95])
def test_chances_are_those_of_the_drafts(hazard: float) -> None:
    found = learned(hazard).survival(4)
    expected = [hazard ** (position + 1) for position in range(4)]
    assert found == pytest.approx(expected, abs=0.13)
    assert found == sorted(found, reverse=True)


def test_before_anything_was_seen_the_first_guess_counts() -> None:
    first, second, third = AcceptanceCurve(0.6).survival(3)
    assert first == 0.6
    assert 0.5 < second / first < 0.6
    assert 0.5 < third / second < second / first
    assert AcceptanceCurve(0.6).survival(0) == []


def test_a_draft_that_was_right_throughout_says_nothing_of_deeper_ones() -> None:
    curve = AcceptanceCurve(0.6)
    depths = []
    for _ in range(30):
        curve.observe(2, 2)
        depths.append(curve.survival(3))
    for before, after in pairwise(depths):
        assert all(new >= old for old, new in zip(before, after, strict=True))
    first, second, third = depths[-1]
    assert first > 0.95
    # Without evidence it is assumed to be like the previous position.
    assert third / second == pytest.approx(0.95 * second / first, rel=0.02)


def test_positions_after_the_first_mistake_are_not_failures() -> None:
    curve = learned(1.0, depth=3, drafts=40)
    for _ in range(20):
        curve.observe(3, 0)
    first, second, third = curve.survival(3)
    assert first < 0.3
    # Lower than before, since drafts differ at earlier positions; but not wrong.
    assert second / first > 0.7
    assert third / second > 0.8


def test_a_draft_that_was_compared_in_part_counts_so_far() -> None:
    curve = learned(0.5, depth=2)
    one, two = curve.survival(2)
    curve.observe(1, 1)
    assert curve.survival(2)[0] > one
    after = curve.survival(2)
    assert after[1] / after[0] == pytest.approx(two / one, rel=0.01)
    before = curve.survival(2)
    curve.observe(0, 0)
    curve.update(0, 0, 0)
    assert curve.survival(2) == before


def test_many_comparisons_at_once_are_equal_to_one_by_one() -> None:
    one, many = AcceptanceCurve(0.5), AcceptanceCurve(0.5)
    for _ in range(8):
        one.update(0, 1, 1)
    many.update(0, 8, 8)
    assert many.survival(1)[0] == pytest.approx(one.survival(1)[0], abs=0.01)


def test_what_is_not_seen_again_is_forgotten() -> None:
    curve = learned(0.0)
    assert curve.survival(1)[0] < 0.05
    hopes = []
    for _ in range(5):
        curve.advance(400)
        hopes.append(curve.survival(1)[0])
    assert hopes == sorted(hopes)
    assert hopes[-1] > 0.4


def test_a_text_that_changed_is_noticed_within_ten_drafts() -> None:
    curve = learned(0.9, depth=1)
    for _ in range(10):
        curve.observe(1, 0)
    assert curve.survival(1)[0] < 0.4
    for _ in range(10):
        curve.observe(1, 1)
    assert curve.survival(1)[0] > 0.6


@pytest.mark.parametrize("drafts", [0, 1, 5, 50, 500])
def test_optimism_hopes_for_more_where_less_was_seen(drafts: int) -> None:
    curve = learned(0.5, depth=2, drafts=drafts)
    plain, hopeful = curve.survival(3), curve.survival(3, 0.75)
    assert all(hope > chance for chance, hope in zip(plain, hopeful, strict=True))
    assert hopeful[0] - plain[0] < 0.75 * 0.5 / (1 + min(drafts, 40)) ** 0.5 + 0.01
    assert max(learned(1.0).survival(4, 3.0)) <= 1.0


@pytest.mark.parametrize("agreed", [2, 3, 5])
def test_of_copies_the_further_a_draft_gets_the_likelier_is_its_next_token(agreed: int) -> None:
    curve = AcceptanceCurve(1.0 - 1.0 / agreed, match_length=agreed)
    chances = curve.survival(12)
    hazards = [right / front for right, front in zip(chances, [1.0, *chances], strict=False)]
    for position, hazard in enumerate(hazards):
        wrong = max(1.0 / (agreed + position), MIN_COPY_END_RATE if position else 0.0)
        assert hazard == pytest.approx(1.0 - wrong)


def test_a_copy_that_ends_early_is_learned_like_any_draft() -> None:
    curve = AcceptanceCurve(0.8, match_length=5)
    for _ in range(100):
        curve.observe(4, 2)
    first, second, third = curve.survival(3)
    assert first > second > 0.96
    assert third < 0.2


def test_what_was_seen_in_other_texts_is_soon_outweighed_and_still_says_how_deep() -> None:
    curve = learned(0.9, depth=6)
    before = curve.survival(6)
    curve.discount(4.0)
    assert curve.evidence == pytest.approx(4.0)
    # The first guess counts for three, and draws it so far.
    assert curve.survival(6)[0] == pytest.approx((3 * 0.6 + 4 * before[0]) / 7, abs=0.02)
    assert curve.survival(6)[5] > 5 * AcceptanceCurve(0.6).survival(6)[5]
    for _ in range(6):
        curve.observe(1, 0)
    assert curve.survival(1)[0] < 0.45
    little = learned(0.9, drafts=2)
    seen = little.evidence
    little.discount(4.0)
    assert little.evidence == seen


def test_looking_does_not_change_what_is_expected_and_nothing_learned_is_overlooked() -> None:
    """Computed values are cached until evidence or the prior changes."""
    dice = random.Random(5)
    asked, unasked = AcceptanceCurve(0.6, match_length=2), AcceptanceCurve(0.6, match_length=2)
    for _ in range(300):
        event, right = dice.randrange(4), dice.randrange(4)
        prior, most = dice.random(), 1.0 + 9.0 * dice.random()
        for curve in (asked, unasked):
            if event == 0:
                curve.observe(3, right)
            elif event == 1:
                curve.advance(DECAY_INTERVAL_TOKENS)
            elif event == 2:
                curve.prior = prior
            else:
                curve.discount(most)
        found = asked.survival(4)
        assert asked.survival(4) is found
        assert asked.survival(4, 0.5)[0] >= found[0]
        # One that was not asked before has to compute it now.
        assert copy.deepcopy(unasked).survival(4) == pytest.approx(found, rel=1e-9)


def test_a_few_tokens_do_not_make_it_work_again() -> None:
    curve = learned(0.8)
    found = curve.survival(4)
    curve.advance(DECAY_INTERVAL_TOKENS - 1)
    assert curve.survival(4) is found
    curve.advance(1)
    assert curve.survival(4) is not found
