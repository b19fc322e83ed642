"""Everyone who may draft for the tiny models, and the plain texts to compare with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, cast

import attrs
import mlx.core as mx
from mlx.utils import tree_map

from speculate import Decoder, DraftModel, Fixed, MTPChain, Off, Sampling, SpeculativeModel
from speculate.protocols import Proposer, Strategy
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import mtp_heads, reference, tiny

OPTIONS: Final[dict[str, Sampling]] = {
    "plain": Sampling(),
    "top_k": Sampling(top_k=8),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.1),
    "xtc": Sampling(xtc_probability=0.5, xtc_threshold=0.05),
    "penalties": Sampling(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3, logit_bias={3: 2.0}
    ),
    "all": Sampling(
        top_p=0.95,
        top_k=20,
        min_p=0.01,
        xtc_probability=0.3,
        xtc_threshold=0.1,
        presence_penalty=1.5,
    ),
}
TEMPERATURES: Final = (0.3, 0.7, 1.0, 1.5)
PROMPT: Final = reference.PROMPT
COUNT: Final = 20
DEPTHS: Final = (1, 2, 3, 4, 5)
WITH_HEAD: Final = {"qwen3_5", "qwen3_5_folded", "qwen3_next", "qwen3_5_wrapped", "qwen3_5_moe"}

NAMES: Final = (
    *(f"mtp {depth}" for depth in DEPTHS),
    *(f"cousin {depth}" for depth in DEPTHS),
    "twin 4",
    "stranger 3",
    "right 5",
    "wrong 5",
    "wrong by turns 4",
    "switching",
    "nobody",
)
"""Who drafts, and how much."""


@attrs.frozen
class Case:
    """One model and one way of choosing tokens."""

    family: str
    temperature: float
    options: str
    seed: int = 11

    @property
    def sampling(self) -> Sampling:
        return attrs.evolve(
            OPTIONS[self.options], temperature=self.temperature, seed=self.seed, mode="coupled"
        )

    @property
    def model(self) -> SpeculativeModel:
        return reference.get(self.family).model


@cache
def text_of(case: Case, count: int = COUNT) -> list[int]:
    """What plain decoding says."""
    return reference.ids_of(Decoder(case.model, Off(), case.sampling).generate(PROMPT, count))


@cache
def cousin(family: str) -> SpeculativeModel:
    """Nearly the same model: a draft that is often right, and has caches of the same kind."""
    module = reference.BUILDERS[family]()
    mx.random.seed(7)

    def shaken(weight: mx.array) -> mx.array:
        return weight + 0.05 * mx.abs(weight).mean() * mx.random.normal(weight.shape)

    module.update(cast("dict[str, object]", tree_map(shaken, module.parameters())))
    mx.eval(module.parameters())
    return reference.adapted(module, recurrence=tiny.recurrence(family)).model


def headed(case: Case, text: Sequence[int]) -> SpeculativeModel:
    """The model with a head: a random one of the real kind, or one that knows the text."""
    if case.family in WITH_HEAD:
        return mtp_heads.with_head(case.family).model
    return mtp_heads.with_knowing_head(case.family, text, wrong=range(0, 100, 7))[0].model


def strategy_for(name: str, case: Case, text: Sequence[int]) -> Strategy:
    """Who drafts, by name of `NAMES`.

    Args:
        name: Its name.
        case: The model and its options.
        text: What plain decoding says, prompt included.
    """
    kind, _, depth = name.rpartition(" ")
    if name == "nobody":
        return Off()
    if name == "switching":
        return switching(case, text)
    return Fixed(proposer(kind, case, text), int(depth))


def proposer(kind: str, case: Case, text: Sequence[int]) -> Proposer:
    wrong: dict[str, Callable[[int], int | None]] = {
        "right": lambda _: None,
        "wrong": lambda _: 0,
        "wrong by turns": lambda n: n % 4,
    }
    if kind in wrong:
        return ScriptedProposer(text, wrong[kind], vocab_size=tiny.VOCAB, name=kind)
    drafts: dict[str, Callable[[], SpeculativeModel]] = {
        "cousin": lambda: cousin(case.family),
        "twin": lambda: case.model,
        "stranger": lambda: reference.get("small_dense").model,
    }
    return DraftModel(drafts[kind](), name=kind) if kind in drafts else MTPChain()


def switching(case: Case, text: Sequence[int], seed: int = 0) -> Strategy:
    """Another proposer in every round, or none."""
    chance = random.Random(seed)
    kinds = ("mtp", "cousin", "stranger", "right", "wrong", "wrong by turns")
    everyone = [proposer(kind, case, text) for kind in kinds]
    return ScheduledStrategy(
        [(chance.choice(everyone), chance.choice((0, 1, 1, 2, 3, 5))) for _ in range(60)]
    )
