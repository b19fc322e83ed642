"""For every proposer and acceptance rule, the output has the target's distribution."""

from __future__ import annotations

from typing import Final, get_args

import attrs
import numpy as np
import pytest

from speculate import Sampling
from speculate.sampling.options import MODES, Mode
from tests.support.batched_sampling import Drafter, Setting, decode
from tests.support.exact_distributions import CHANCE, Outcome, joint, p_value
from tests.support.table_models import table

FILTERS: Final[dict[str, Sampling]] = {
    "no filter": Sampling(),
    "top_k": Sampling(top_k=3),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.15),
    "penalty": Sampling(
        repetition_penalty=1.4,
        repetition_context_size=3,
        presence_penalty=0.4,
        presence_context_size=2,
        frequency_penalty=0.3,
        frequency_context_size=4,
    ),
    "xtc": Sampling(xtc_probability=0.6, xtc_threshold=0.12),
}
TEMPERATURES: Final = (0.3, 0.7, 1.0, 1.5)
DEPTHS: Final = (1, 2, 4)
SMALL: Final = 4
"""Vocabulary whose every round of four drafts can be worked out."""


def options(name: str, temperature: float, mode: Mode) -> Sampling:
    return attrs.evolve(FILTERS[name], temperature=temperature, mode=mode)


def check_beginnings(setting: Setting, texts: int, count: int, first_seed: int = 0) -> None:
    found = decode(setting, texts, count, first_seed).beginnings(count)
    assert p_value(found, joint(setting.after, count)) > CHANCE


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("mode", MODES)
def test_the_first_two_tokens_have_the_target_s_distribution(
    mode: Mode, temperature: float, name: str, depth: int
) -> None:
    setting = Setting(sampling=options(name, temperature, mode), depth=depth)
    check_beginnings(setting, texts=400, count=2)


@pytest.mark.soak
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("mode", MODES)
def test_the_distribution_over_half_a_million_rounds(
    mode: Mode, temperature: float, name: str, depth: int
) -> None:
    setting = Setting(sampling=options(name, temperature, mode), depth=depth)
    found = [
        beginning
        for part in range(10)
        for beginning in decode(setting, 25_000, 2, first_seed=25_000 * part).beginnings(2)
    ]
    assert p_value(found, joint(setting.after, 2)) > CHANCE


@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("mode", MODES)
def test_three_tokens_in_a_row_have_their_joint_distribution(mode: Mode, drafter: Drafter) -> None:
    sampling = Sampling(temperature=0.9, mode=mode, top_p=0.95)
    check_beginnings(Setting(sampling=sampling, depth=2, drafter=drafter), texts=8000, count=3)


@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("mode", MODES)
def test_tokens_given_how_many_were_accepted_have_their_distribution(
    mode: Mode, depth: int, drafter: Drafter
) -> None:
    setting = Setting(
        sampling=Sampling(temperature=0.9, mode=mode),
        depth=depth,
        drafter=drafter,
        target=table(1, SMALL),
        drafts=0.6 * table(1, SMALL) + 0.6 * table(2, SMALL),
    )
    found = decode(setting, 10_000).round(0)
    assert p_value(found, setting.round_distribution()) > CHANCE


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
@pytest.mark.parametrize("mode", MODES)
def test_filters_bind_drafts_and_target_alike_in_every_outcome(name: str, mode: Mode) -> None:
    setting = Setting(
        sampling=options(name, 0.9, mode),
        depth=3,
        target=table(1, SMALL),
        drafts=0.6 * table(1, SMALL) + 0.6 * table(2, SMALL),
    )
    found = decode(setting, 10_000).round(0)
    assert p_value(found, setting.round_distribution()) > CHANCE


@pytest.mark.parametrize("mode", MODES)
def test_later_rounds_have_the_distribution_too(mode: Mode) -> None:
    """The seventh and eighth token, whatever came before."""
    setting = Setting(
        sampling=Sampling(temperature=0.8, mode=mode),
        depth=3,
        target=table(1, SMALL),
        drafts=table(2, SMALL),
    )
    late = [text[6:] for text in decode(setting, 6000, 8).beginnings(8)]
    step = setting.p
    sixth = np.linalg.matrix_power(step, 6)[setting.start]
    expected: dict[Outcome, float] = {
        (a, b): float(sixth @ step[:, a] * step[a, b]) for a, b in np.ndindex(SMALL, SMALL)
    }
    assert p_value(late, expected) > CHANCE
