"""Everybody drafts at random, on a clock that runs wild, and now and then something raises."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Final, final

import attrs
import mlx.core as mx

from speculate import Adaptive, Decoder, DraftModel, MTPChain, Off, PromptLookup, Sampling, Token
from speculate.protocols import (
    Costs,
    Forward,
    MTPHead,
    Plan,
    Proposer,
    Rollbackable,
    Round,
    Strategy,
    SupportsFailover,
)
from tests.support import reference, tiny
from tests.support.mtp_heads import KnowingHead, with_head
from tests.support.recording import Broken, GuidedModel, WatchedProposer

SMALL: Final = ("small_dense", "small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
REAL_HEADS: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
LENGTH: Final = 100
"""Tokens of the text that a family's sessions are parts of."""

START: Final = 5
"""Tokens of it that nobody generated."""

RAISING: Final = ("commit", "propose", "settle")


@cache
def plain(name: str, temperature: float) -> tuple[int, ...]:
    """A text as plain decoding gives it. From any place in it, plain decoding goes on with it."""
    decoder = Decoder(reference.get(name).model, Off(), options(temperature))
    prompt = reference.text_of(START, len(name))
    return (*prompt, *reference.ids_of(decoder.generate(prompt, LENGTH - len(prompt))))


def options(temperature: float) -> Sampling:
    """Greedy, or mode "coupled"."""
    return Sampling(temperature=temperature, seed=5 if temperature else None)


class Loud:
    """A head that is sure of what another one says, also at a temperature."""

    def __init__(self, inner: MTPHead) -> None:
        self._inner = inner

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self._inner.make_cache(position)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        out = self._inner.step(hidden, tokens, cache)
        return Forward(out.logits * 1e6, out.hidden)


@final
class Switching:
    """Plans anybody, nobody included, at any depth from 0 to 6; goes on without who raises."""

    def __init__(self, proposers: Sequence[Proposer], dice: random.Random) -> None:
        self._proposers = proposers
        self._dice = dice
        self.failures: list[str] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._proposers

    def plan(self, remaining: int | None, /) -> Plan:
        depth = self._dice.randint(0, 6)
        proposer = self._dice.choice([None, *self._proposers])
        return Plan(proposer, depth) if proposer is not None and depth else Plan()

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""

    def begin(self) -> None:
        self.failures.clear()

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        assert isinstance(error, Broken)
        self.failures.append(proposer.name)


@final
class WildClock:
    """Has a strategy believe in times that have nothing to do with what happened.

    Attributes:
        failures: Names of those that raised in this text.
    """

    def __init__(self, inner: SupportsFailover, dice: random.Random) -> None:
        self._inner = inner
        self._dice = dice
        self.failures: list[str] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._inner.proposers

    def plan(self, remaining: int | None, /) -> Plan:
        return self._inner.plan(remaining)

    def observe(self, round: Round, /) -> None:
        seconds = self._dice.choice((0.0, 1e-9, 0.01, 0.02, 0.03, 1.0, 1e5))
        self._inner.observe(attrs.evolve(round, seconds=seconds * self._dice.random()))

    def begin(self) -> None:
        self.failures.clear()
        self._inner.begin()

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        assert isinstance(error, Broken)
        self.failures.append(proposer.name)
        self._inner.failed(proposer, error)


@final
class Faults:
    """Raises at random where proposers are called, and counts how often."""

    def __init__(self, dice: random.Random, chance: float) -> None:
        self._dice = dice
        self._chance = chance
        self.raised = 0

    def __call__(self, place: str) -> None:
        if place.removesuffix(" done") in RAISING and self._dice.random() < self._chance:
            self.raised += 1
            raise Broken(place)


@final
class Sessions:
    """Parts of one family's text, decoded again with drafts.

    Args:
        name: The family.
        temperature: 0 for greedy.
        seed: Of everything that is left to chance.
        adaptive: `Adaptive` decides on a wild clock, and not chance alone.
        faults: How likely a call of a proposer raises.

    Attributes:
        rounds: That were made.
        accepted: Drafts that stood.
    """

    def __init__(
        self, name: str, temperature: float, seed: int, *, adaptive: bool = False, faults: float = 0
    ) -> None:
        self._dice = random.Random(f"{name} {temperature} {seed} {adaptive} {faults}")
        self._name, self._temperature, self._adaptive = name, temperature, adaptive
        self._text = plain(name, temperature)
        self._faults = Faults(self._dice, faults)
        self._observed: list[Round] = []
        self.rounds = self.accepted = 0

    def run(self, rounds: int) -> None:
        """Decode until so many rounds were made."""
        while self.rounds < rounds:
            strategy = self._strategy()
            decoder = self._decoder(strategy)
            for _ in range(self._dice.randint(1, 3)):
                self._decode(decoder, strategy)

    def _decoder(self, strategy: Strategy) -> Decoder:
        head = Loud(KnowingHead(self._text, self._wrong()))
        module, recurrence = reference.get(self._name).module, tiny.recurrence(self._name)
        model = reference.adapted(module, head, recurrence=recurrence).model
        if self._name in REAL_HEADS and self._dice.random() < 0.3:
            model = with_head(self._name).model
        step = self._dice.choice((7, 2048))
        sampling = options(self._temperature)
        observe = self._observed.append
        return Decoder(model, strategy, sampling, observer=observe, prefill_step_size=step)

    def _strategy(self) -> Switching | WildClock:
        small = reference.get(self._dice.choice(SMALL)).model
        some: list[Proposer] = [
            WatchedProposer(MTPChain(), self._faults),
            WatchedProposer(
                DraftModel(GuidedModel(small, self._text, self._wrong())), self._faults
            ),
            PromptLookup(min_ngram=1),
        ]
        if not self._adaptive:
            return Switching(some, self._dice)
        costs = Costs(0, {1: 0.02, 9: 0.03}, {"mtp": 0.001})
        return WildClock(Adaptive(*some, costs=costs), self._dice)

    def _wrong(self) -> set[int]:
        """A fifth of all positions."""
        return {place for place in range(LENGTH) if self._dice.random() < 0.2}

    def _decode(self, decoder: Decoder, strategy: Switching | WildClock) -> None:
        """One text, with caches looked at in the middle and in the end."""
        start = self._dice.randint(START, LENGTH // 2)
        count = self._dice.randint(1, LENGTH - start)
        prompt, caches = self._text[:start], reference.stock_caches(self._name)
        raised, self._faults.raised = self._faults.raised, 0
        self._observed.clear()
        tokens: list[Token] = []
        for token in decoder.generate(prompt, count, caches):
            tokens.append(token)
            if self._dice.random() < 0.02:
                decoder.settle()
                reference.check_holds(self._name, caches, [*prompt, *reference.ids_of(tokens)])
        assert reference.ids_of(tokens) == list(self._text[start : start + count])
        reference.check_holds(self._name, caches, [*prompt, *reference.ids_of(tokens)])
        self._check_scores(start, tokens)
        assert len(set(strategy.failures)) == len(strategy.failures) == self._faults.raised
        self._faults.raised += raised
        self.rounds += len(self._observed)
        self.accepted += sum(round.accepted for round in self._observed)

    def _check_scores(self, start: int, tokens: Sequence[Token]) -> None:
        """Of every token: those of a cold prefill of the text, bit for bit."""
        logits, _ = reference.cold(self._name, self._text)
        want = reference.logprobs(logits)[start - 1 : start - 1 + len(tokens)]
        found = mx.stack([token.logprobs for token in tokens])
        assert mx.abs(found - want).max().item() == 0.0
