"""The traced rounds of `batched` are a decoder's, token for token."""

from __future__ import annotations

from typing import Final, get_args

import attrs
import mlx.core as mx
import numpy as np
import pytest

from speculate import Decoder, DraftModel, Fixed, Sampling
from speculate.protocols import Proposer
from speculate.sampling.noise import key
from speculate.sampling.options import MODES, Mode
from tests.support.batched_sampling import HISTORY, Drafter, Setting, decode, traced_key
from tests.support.table_models import LookupProposer, TableModel, to_mx

SEEDS: Final = 2
ROUNDS: Final = 4
OPTIONS: Final = {
    "plain": Sampling(temperature=0.8),
    "filters": Sampling(temperature=1.1, top_p=0.9, top_k=5, min_p=0.02),
    "xtc": Sampling(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.1),
    "penalties": Sampling(
        temperature=0.8,
        repetition_penalty=1.4,
        repetition_context_size=3,
        frequency_penalty=0.3,
        frequency_context_size=4,
    ),
}


def proposer(setting: Setting) -> Proposer:
    if setting.drafter == "sampled":
        return DraftModel(TableModel(to_mx(setting.drafts)))
    return LookupProposer([setting.certain(token) for token in range(len(setting.target))])


def by_decoder(setting: Setting, seed: int) -> list[list[int]]:
    """What each round emitted, by a real decoder."""
    lengths: list[int] = []
    decoder = Decoder(
        TableModel(to_mx(setting.target)),
        Fixed(proposer(setting), setting.depth),
        attrs.evolve(setting.sampling, seed=seed),
        observer=lambda round: lengths.append(round.emitted),
    )
    running = decoder.generate([*HISTORY, setting.start], max_tokens=1000)
    tokens = [next(running).id for _ in range(ROUNDS * (setting.depth + 1) + 1)]
    running.close()
    ends = np.cumsum(lengths[:ROUNDS]).tolist()
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_rounds_are_those_of_a_decoder(mode: Mode, name: str, drafter: Drafter) -> None:
    sampling = attrs.evolve(OPTIONS[name], mode=mode)
    setting = Setting(sampling=sampling, depth=3, drafter=drafter)
    found = decode(setting, SEEDS, ROUNDS)
    rounds = [found.round(number) for number in range(ROUNDS)]
    for seed in range(SEEDS):
        assert [list(one[seed]) for one in rounds] == by_decoder(setting, seed)


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**63 - 1])
def test_traced_keys_are_the_library_s(seed: int) -> None:
    for stream, position in [(0, 0), (1, 5), (3 + 8 * 100, 2**20)]:
        traced = traced_key(mx.array(np.array(seed, dtype=np.uint64)), stream, mx.array(position))
        assert tuple(int(word) for word in traced) == key(seed, stream, position)
