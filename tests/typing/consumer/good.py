"""What users write: all of it is right, under a type checker without any settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx

import speculate as sp
from speculate import SpeculativeModel
from speculate.integrations.mlx_lm import mtp_generate_step
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    Observer,
    Plan,
    Proposer,
    Rollbackable,
    Round,
    Strategy,
)


@final
class Repeats:
    """Drafts the last_token token again."""

    def __init__(self) -> None:
        self._position = 0

    @property
    def name(self) -> str:
        return "repeats"

    def attach(self, target: SpeculativeModel, /) -> None: ...

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += len(commit.ids)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(mx.broadcast_to(last_token, (limit,)))

    def settle(self) -> None: ...


@final
class EveryOther:
    """Drafts in every other round."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._turn = False

    @property
    def proposers(self) -> Sequence[Proposer]:
        return [self._proposer]

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        self._turn = not self._turn
        return Plan(self._proposer, 2) if self._turn else Plan()

    def observe(self, round: Round, /) -> None: ...


def observe_round(round: Round) -> None:
    print(round.index, round.proposer, round.accepted, round.seconds)


def own_loop(model: SpeculativeModel, prompt: list[int]) -> list[int]:
    cache: list[Rollbackable] = model.make_cache()
    with sp.speculation(cache) as window:
        out = model.forward(mx.array([prompt]), cache)
        window.keep(len(prompt))
    logits: mx.array = out.logits
    best = mx.argmax(logits[0, -1])
    return cast("list[int]", best[None].tolist())


def main() -> None:
    model, tokenizer = sp.load_demo()
    proposer: Proposer = Repeats()
    strategy: Strategy = EveryOther(proposer)
    observer: Observer = observe_round
    decoder = sp.Decoder(
        model,
        sp.Adaptive(proposer, sp.MTPChain(), sp.PromptLookup(), clock="fixed"),
        sp.Sampling(temperature=0.8, seed=1, mode="rejection"),
        observer=observer,
    )
    ids: list[int] = [token.id for token in decoder.generate([1, 2, 3], max_tokens=4)]
    rates: list[float] = [decoder.stats.mean_acceptance_length]
    text: str = sp.generate(model, tokenizer, "def f(", max_tokens=4)
    other = sp.Decoder(model, strategy)
    for token in other.generate(mx.array(ids), 4, prompt_cache=list(model.make_cache())):
        name: str | None = token.proposer
        print(token.id, name, token.logprobs.shape)
    for id_, logprobs, from_draft in mtp_generate_step(mx.array([1, 2]), model, max_tokens=4):
        print(id_, logprobs.shape, from_draft)
    print(rates, text, own_loop(model, ids))
