"""What users write: all of it is right, under a type checker without any settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast, final

import mlx.core as mx

import speculate as sp
from speculate import SpeculativeModel
from speculate.integrations.mlx_lm import mtp_generate_step
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    DraftToken,
    Observer,
    Plan,
    Proposer,
    Rollbackable,
    Round,
    Sampler,
    Strategy,
    Verification,
)
from speculate.sampling import Mode, acceptance_rule


@final
class Repeats:
    """Drafts the last token again."""

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


@final
class Flat:
    """Draws every token with the same probability."""

    supports_lookahead = True

    def __init__(self, seed: int, mode: Mode = "rejection") -> None:
        self.seed = seed
        self._mode: Mode = mode
        self.begin((), 0, ())

    def log_weights(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        return mx.zeros(logits.shape)

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._rule = acceptance_rule(self, self._mode)
        self._next = position + 1

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return self._rule.choose(logits, self._next + index)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        positions = range(self._next, self._next + logits.shape[0])
        return self._rule.verify(logits, positions, draft)

    def commit(self, tokens: mx.array, /) -> None:
        self._next += tokens.shape[0]


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
    sampler: Sampler = Flat(seed=3)
    text += sp.generate(model, tokenizer, "def f(", max_tokens=4, sampling=sampler)
    for response in sp.stream_generate(model, tokenizer, ids, max_tokens=4, sampling=Flat(4)):
        text += response.text
    for token in sp.Decoder(model, sampling=sampler).generate(ids, 4):
        ids.append(token.id)
    other = sp.Decoder(model, strategy)
    for token in other.generate(mx.array(ids), 4, prompt_cache=list(model.make_cache())):
        name: str | None = token.proposer
        print(token.id, name, token.logprobs.shape)
    for id_, logprobs, from_draft in mtp_generate_step(mx.array([1, 2]), model, max_tokens=4):
        print(id_, logprobs.shape, from_draft)
    print(rates, text, own_loop(model, ids))
