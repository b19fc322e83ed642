"""The tests of the distribution detect the mistakes that engines ship."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs
import numpy as np
import pytest

from speculate import Sampling
from speculate.sampling.options import MODES, Mode
from tests.support import biased_rules
from tests.support.batched_sampling import Setting, decode
from tests.support.exact_distributions import CHANCE, joint, p_value
from tests.support.table_models import table

SMALL: Final = Setting(
    sampling=Sampling(temperature=0.9, mode="rejection"),
    depth=2,
    target=table(1, 4),
    drafts=0.3 * table(1, 4) + 0.9 * table(2, 4),
)
FILTERED: Final = attrs.evolve(SMALL, sampling=attrs.evolve(SMALL.sampling, top_k=2))
FAR_APART: Final = Setting(
    sampling=Sampling(temperature=0.9, mode="block"),
    depth=4,
    target=table(5, 3),
    drafts=table(7, 3),
    start=1,
)
SEEDS: Final = 3000


def p_of_text(setting: Setting, seeds: int = SEEDS) -> float:
    """How well the first two tokens of many texts fit the target's distribution."""
    return p_value(decode(setting, seeds, 2).beginnings(2), joint(setting.after, 2))


def p_of_round(setting: Setting, seeds: int = SEEDS) -> float:
    """How well one round's accepted drafts, with the token after them, fit theirs."""
    return p_value(decode(setting, seeds).round(0), setting.round_distribution())


@pytest.mark.parametrize("setting", [SMALL, FILTERED, FAR_APART])
def test_the_right_rules_are_not_refused(setting: Setting) -> None:
    assert min(p_of_text(setting), p_of_round(setting)) > CHANCE


def test_the_controls_are_right_before_they_are_broken() -> None:
    right = attrs.evolve(SMALL, rule=biased_rules.PlainRejection)
    assert min(p_of_text(right), p_of_round(right)) > CHANCE


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (biased_rules.CoinFromTheDraft, SMALL),
        (biased_rules.DistributionBeforeFilters, FILTERED),
        (biased_rules.SoftDistributionOfGreedyDrafts, SMALL),
        (biased_rules.RestNotRenormalised, SMALL),
        (biased_rules.RestIsTheTarget, SMALL),
        (biased_rules.AcceptIfMostLikely, SMALL),
        (biased_rules.SameNoiseAtEachPlace, SMALL),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_biased_rule_is_refused_by_its_text(
    wrong: type[biased_rules.PlainRejection], setting: Setting
) -> None:
    assert p_of_text(attrs.evolve(setting, rule=wrong)) < CHANCE


@pytest.mark.parametrize("mode", MODES)
def test_a_greedy_drafter_does_not_tilt_the_text(mode: Mode) -> None:
    """With its softmax taken for its distribution the text would be 2 in 5, 3 in 5 and never."""
    p, q = np.log([0.5, 0.3, 0.2]), np.log([0.2, 0.5, 0.3])
    setting = Setting(
        sampling=Sampling(temperature=1.0, mode=mode),
        depth=1,
        drafter="greedy",
        target=np.stack([p] * 3),
        drafts=np.stack([q] * 3),
        start=2,
    )
    assert p_of_text(setting) > CHANCE
    wrong = attrs.evolve(
        setting, drafter="sampled", rule=biased_rules.SoftDistributionOfGreedyDrafts
    )
    found = Counter(outcome[0] for outcome in decode(wrong, SEEDS).round(0))
    assert abs(found[0] / SEEDS - 0.4) < 0.05
    assert found[2] == 0


def test_a_bonus_token_from_the_wrong_row_is_refused() -> None:
    wrong = attrs.evolve(SMALL, depth=1, rule=biased_rules.BonusFromTheWrongRow)
    assert p_of_text(wrong) < CHANCE
    assert p_of_round(wrong) < CHANCE


def test_noise_shared_by_draft_and_residual_is_refused() -> None:
    """This bias is small: it takes more texts, and shows best in what a round accepted."""
    shared = attrs.evolve(SMALL, depth=3)
    assert p_of_round(attrs.evolve(shared, rule=biased_rules.RestFromTheDraft), 40_000) < CHANCE
    assert p_of_round(shared, 40_000) > CHANCE


def test_noise_that_rounds_of_block_verification_share_is_refused() -> None:
    """A rejected block has looked at the coins of all its places, and they were bad."""
    binary = attrs.evolve(FAR_APART, target=table(5, 2), drafts=table(7, 2))
    assert p_of_text(attrs.evolve(binary, rule=biased_rules.same_noise_each_round), 15_000) < CHANCE
    assert p_of_text(binary, 15_000) > CHANCE
