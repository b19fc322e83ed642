"""Mode "coupled", ten thousand seeds at a time: the same output for every proposer."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final, get_args

import attrs
import numpy as np
import pytest

from speculate import Sampling
from speculate.sampling.noise import gumbel, key
from speculate.testing.samplers import chi_square
from tests.support.batched_sampling import Drafter, Setting, decode
from tests.support.exact_distributions import CHANCE, distribution
from tests.support.table_models import table

SEEDS: Final = 10_000
COUNT: Final = 4
OPTIONS: Final = {
    "plain": Sampling(temperature=0.9),
    "hot": Sampling(temperature=1.5, top_p=0.9, top_k=6),
    "cold": Sampling(temperature=0.3, min_p=0.01),
    "xtc": Sampling(temperature=0.7, xtc_probability=0.5, xtc_threshold=0.1),
    "penalties": Sampling(
        temperature=1.0,
        repetition_penalty=1.4,
        repetition_context_size=3,
        presence_penalty=0.3,
        presence_context_size=3,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_ten_thousand_seeds_give_the_same_texts_with_any_proposer(name: str) -> None:
    one = Setting(sampling=OPTIONS[name], depth=1, drafter="lookup")
    texts = decode(one, SEEDS, COUNT).beginnings(COUNT)
    others: tuple[tuple[Drafter, int], ...] = (("sampled", 3), ("greedy", 2))
    for drafter, depth in others:
        other = attrs.evolve(one, depth=depth, drafter=drafter, drafts=table(2))
        assert decode(other, SEEDS, COUNT).beginnings(COUNT) == texts


@pytest.mark.soak
@pytest.mark.parametrize("depth", [1, 2, 4, 5])
@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("name", OPTIONS)
def test_a_hundred_thousand_seeds(name: str, drafter: Drafter, depth: int) -> None:
    one = Setting(sampling=OPTIONS[name], depth=2, drafter="lookup")
    other = attrs.evolve(one, depth=depth, drafter=drafter, drafts=table(2))
    for part in range(10):
        texts = [decode(x, SEEDS, COUNT, SEEDS * part).beginnings(COUNT) for x in (one, other)]
        assert texts[0] == texts[1]


def test_the_text_is_what_log_probabilities_and_noise_say() -> None:
    """The rule itself, worked out in float64 but for ties."""
    setting = Setting(sampling=Sampling(temperature=0.9), depth=3)
    texts = decode(setting, 300, 4).beginnings(4)
    for seed, text in enumerate(texts):
        last_token = setting.start
        for place, token in enumerate(text):
            noise = np.array(gumbel([key(seed, 1, 4 + place)], 8))[0]
            scores = np.log(distribution(setting.target[last_token], setting.sampling)) + noise
            assert scores[token] > scores.max() - 1e-5
            last_token = token


def test_texts_of_neighbouring_seeds_are_independent() -> None:
    setting = Setting(sampling=Sampling(temperature=0.9), depth=2)
    tokens = [outcome[0] for outcome in decode(setting, 20_001).round(0)]
    p = setting.p[setting.start]
    pairs = Counter(pairwise(tokens))
    cells = [(pairs[a, b], 20_000 * p[a] * p[b]) for a, b in np.ndindex(8, 8)]
    assert chi_square(cells) > CHANCE
