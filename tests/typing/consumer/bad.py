"""What users get wrong: every marked line is an error to both type checkers, and no other is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import mlx.core as mx

import speculate as sp
from speculate import SpeculativeModel
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    DraftToken,
    Observer,
    Plan,
    Proposer,
    Round,
    Sampler,
    Strategy,
    Verification,
)
from speculate.sampling import acceptance_rule


class NoSettle:
    name = "no settle"

    def attach(self, target: SpeculativeModel, /) -> None: ...
    def begin(self, position: int, history: Sequence[int] = (), /) -> None: ...
    def position(self) -> int:
        return 0

    def commit(self, commit: Commit, /) -> None: ...
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(last_token)


class ListsDrafts(NoSettle):
    def settle(self) -> None: ...
    def propose(self, last_token: mx.array, n: int, choose: DraftSampler, /) -> list[int]:  # wrong
        return [1]


class NumberedName:
    @property
    def name(self) -> int:
        return 1

    def attach(self, target: SpeculativeModel, /) -> None: ...
    def begin(self, position: int, history: Sequence[int] = (), /) -> None: ...
    def position(self) -> int:
        return 0

    def commit(self, commit: Commit, /) -> None: ...
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(last_token)

    def settle(self) -> None: ...


class NoPlan:
    @property
    def proposers(self) -> Sequence[Proposer]:
        return ()

    def observe(self, round: Round, /) -> None: ...


class PlansNumbers:
    @property
    def proposers(self) -> Sequence[Proposer]:
        return ()

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> int:
        return 3

    def observe(self, round: Round, /) -> None: ...


def observes_plans(plan: Plan) -> None: ...


class NoCommit:
    supports_lookahead = True

    def begin(
        self, history: Sequence[int], position: int, stop_tokens: Collection[int], /
    ) -> None: ...
    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return DraftToken(logits)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        return Verification(logits, logits, logits)


class CommitsIds(NoCommit):
    def commit(self, tokens: list[int], /) -> None: ...


class HalfAModel:
    vocab_size = 10
    eos_token_ids = frozenset[int]()
    head = None
    vocabulary = None

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> mx.array:
        return tokens


no_settle: Proposer = NoSettle()  # wrong
numbered: Proposer = NumberedName()  # wrong
no_plan: Strategy = NoPlan()  # wrong
plans_numbers: Strategy = PlansNumbers()  # wrong
no_commit: Sampler = NoCommit()  # wrong
commits_ids: Sampler = CommitsIds()  # wrong
wrong_event: Observer = observes_plans  # wrong
half: SpeculativeModel = HalfAModel()  # wrong


def misuse(model: SpeculativeModel) -> None:
    sp.Decoder(model, sp.MTPChain())  # wrong
    sp.Decoder(HalfAModel())  # wrong
    sp.Decoder(model, sampling=NoCommit())  # wrong
    sp.Decoder(model, sampling=NoCommit)  # wrong
    acceptance_rule(NoCommit(), "rejection")  # wrong
    sp.Fixed("mtp", 3)  # wrong
    sp.Adaptive(sp.MTPChain(), clock="sundial")  # wrong
    sp.Adaptive(sp.Off())  # wrong
    sp.Sampling(mode="typical")  # wrong
    sp.Decoder(model).generate("text")  # wrong
    print(sp.Decoder(model).stats.acceptance)  # wrong
    sp.DraftModel(HalfAModel())  # wrong
    model.forward([[1, 2]], [])  # wrong
    for token in sp.Decoder(model).generate([1]):
        token.id = 3  # wrong
