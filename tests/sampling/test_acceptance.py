"""The number of accepted drafts is what theory predicts, in every mode."""

from __future__ import annotations

import math
from typing import Final, get_args

import attrs
import numpy as np
import pytest

from speculate import Sampling
from speculate.sampling.options import MODES, Mode
from tests.support.batched_sampling import Drafter, Setting, Texts, decode
from tests.support.exact_distributions import Outcome, mean_accepted, overlap
from tests.support.table_models import table

TEXTS: Final = 20_000
SIGMAS: Final = 5
FILTERS: Final = {
    "no filter": Sampling(temperature=0.9),
    "cold": Sampling(temperature=0.3),
    "top_k": Sampling(temperature=1.0, top_k=4),
    "top_p": Sampling(temperature=1.5, top_p=0.8),
}


def spread(outcomes: dict[Outcome, float]) -> float:
    """Standard deviation of the number of accepted drafts."""
    square = sum((len(outcome) - 1) ** 2 * chance for outcome, chance in outcomes.items())
    return math.sqrt(square - mean_accepted(outcomes) ** 2)


def small(sampling: Sampling, depth: int, drafter: Drafter = "sampled") -> Setting:
    return Setting(
        sampling=sampling,
        depth=depth,
        drafter=drafter,
        target=table(1, 4),
        drafts=0.3 * table(1, 4) + 0.9 * table(2, 4),
    )


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("mode", MODES)
def test_a_draft_is_accepted_as_often_as_the_closed_form_says(mode: Mode, name: str) -> None:
    setting = Setting(sampling=attrs.evolve(FILTERS[name], mode=mode), depth=1)
    p, q = setting.p[setting.start], setting.q[setting.start]
    want = overlap(mode, p, q).sum()
    found = decode(setting, TEXTS).accepted.mean()
    assert abs(found - want) < SIGMAS * math.sqrt(want * (1 - want) / TEXTS)


@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("mode", MODES)
def test_four_drafts_are_accepted_as_often_as_all_rounds_together_say(
    mode: Mode, drafter: Drafter
) -> None:
    setting = small(Sampling(temperature=0.9, mode=mode), 4, drafter)
    outcomes = setting.round_distribution()
    found = decode(setting, TEXTS).accepted.mean()
    allowed = SIGMAS * spread(outcomes) / math.sqrt(TEXTS)
    assert abs(found - mean_accepted(outcomes)) < allowed


@pytest.mark.parametrize("seed", range(20))
def test_block_verification_accepts_no_less_than_rejection_in_theory(seed: int) -> None:
    modes: tuple[Mode, Mode] = ("block", "rejection")
    block, rejection = (
        mean_accepted(
            Setting(
                sampling=Sampling(temperature=0.9, mode=mode),
                depth=3,
                target=table(seed, 3),
                drafts=table(seed + 100, 3),
                start=seed % 3,
            ).round_distribution()
        )
        for mode in modes
    )
    assert block >= rejection - 1e-12


def test_block_verification_accepts_more_than_rejection_and_coupling_least() -> None:
    texts: dict[str, Texts] = {
        mode: decode(small(Sampling(temperature=0.9, mode=mode), 4), TEXTS) for mode in MODES
    }
    means = {mode: found.accepted.mean() for mode, found in texts.items()}
    apart = SIGMAS * math.sqrt(2 * 4 / TEXTS)
    assert means["block"] > means["rejection"] + apart
    assert means["rejection"] > means["coupled"]


def test_equal_distributions_lose_no_draft() -> None:
    for mode in MODES:
        sampling = Sampling(temperature=0.9, mode=mode, top_p=0.9)
        setting = Setting(sampling=sampling, depth=4, target=table(1), drafts=table(1))
        assert decode(setting, 2000, 2).accepted.min() == 4


def test_disjoint_distributions_keep_none() -> None:
    target, drafts = np.full((8, 8), -1e9), np.full((8, 8), -1e9)
    target[:, :4] = table(1)[:, :4]
    drafts[:, 4:] = table(2)[:, 4:]
    for mode in MODES:
        sampling = Sampling(temperature=0.9, mode=mode)
        setting = Setting(sampling=sampling, depth=4, target=target, drafts=drafts)
        found = decode(setting, 2000, 2)
        assert found.accepted.max() == 0
        assert found.own.max() < 4
