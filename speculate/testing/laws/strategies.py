"""What a strategy must do: the laws of `Strategy`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, cast, final

import mlx.core as mx

from speculate.backends.group import RECORD_WINDOW
from speculate.decoding.decoder import Decoder
from speculate.protocols import Plan, Round, SpeculativeModel, Strategy
from speculate.strategies.fixed import MAX_DEPTH, Off
from speculate.testing.broken import at, law, require

MakeStrategy = Callable[[], Strategy]
"""A fresh strategy, with proposers of its own."""

Accept = Callable[[int, int], int]
"""How many of some drafts stand, in which round."""

ACCEPTING: Final[Mapping[str, Accept]] = {
    "all": lambda round, drafted: drafted,
    "none": lambda round, drafted: 0,
    "one": lambda round, drafted: min(1, drafted),
    "some": lambda round, drafted: (7 * round + 3 * round // 5) % (drafted + 1),
}
ROUNDS: Final = 200


@final
class Played:
    """A strategy in the middle of a text that is made up.

    Args:
        strategy: The strategy.
        accept: What becomes of its drafts.

    Attributes:
        plans: Name of whom it planned, and the depth.
    """

    def __init__(self, strategy: Strategy, accept: Accept) -> None:
        self._strategy = strategy
        self._accept = accept
        self._emitted = 0
        self._unheard: list[Round] = []
        self.plans: list[tuple[str | None, int]] = []

    def round(self, remaining: int | None = None, *, ahead: bool = False) -> None:
        """One round.

        Args:
            remaining: Tokens that may still be emitted.
            ahead: It is asked for the next round before it hears of this one.

        Raises:
            BrokenLawError: What it plans cannot be done.
        """
        index = len(self.plans)
        with at(index, self._emitted):
            plan = self._strategy.plan(remaining)
            check(plan, self._strategy)
        self.plans.append((None if plan.proposer is None else plan.proposer.name, plan.depth))
        self._unheard.append(self._done(index, plan, remaining))
        with at(index, self._emitted):
            while len(self._unheard) > ahead:
                self._strategy.observe(self._unheard.pop(0))

    def _done(self, index: int, plan: Plan, remaining: int | None) -> Round:
        drafted = plan.depth if remaining is None else min(plan.depth, remaining - 1)
        accepted = self._accept(index, drafted)
        self._emitted += 1 + accepted
        return Round(
            index=index,
            proposer=plan.proposer.name if plan.proposer and drafted else None,
            planned=plan.depth,
            drafted=drafted,
            accepted=accepted,
            emitted=1 + accepted,
            cut=remaining == 1 + accepted,
            # As a machine that reads its weights once a pass would need.
            seconds=0.01 + 0.001 * drafted,
            context=self._emitted,
        )


def check(plan: Plan, strategy: Strategy) -> None:
    """Whether a plan can be carried out.

    Raises:
        BrokenLawError: It cannot.
    """
    if plan.proposer is None:
        require(plan.depth == 0, f"plans {plan.depth} drafts by nobody")
        return
    name = plan.proposer.name
    known = any(plan.proposer is proposer for proposer in strategy.proposers)
    require(known, f"plans '{name}', which is not among its proposers and hears of nothing")
    plans = f"plans {plan.depth} drafts by '{name}': plan"
    require(plan.depth >= 1, f"{plans} at least 1, or Plan() for a round without")
    deepest = f"at most {MAX_DEPTH}, since caches record {RECORD_WINDOW} tokens"
    require(plan.depth <= MAX_DEPTH, f"{plans} {deepest}")


@law
def its_proposers_are_told_apart(make: MakeStrategy) -> None:
    """By name, and they are the same ones whenever they are asked for."""
    strategy = make()
    names = [proposer.name for proposer in strategy.proposers]
    require(len(set(names)) == len(names), f"two proposers share a name: {names}")
    Played(strategy, ACCEPTING["some"]).round()
    again = [proposer.name for proposer in strategy.proposers]
    require(names == again, f"has proposers {names}, and later {again}")


@law
def plans_can_be_carried_out(make: MakeStrategy) -> None:
    """Whatever becomes of the drafts, and however much is left of the text."""
    for accept in ACCEPTING.values():
        played = Played(make(), accept)
        for round in range(ROUNDS):
            played.round((None, 1, 2, 3, 1000)[round % 5])


@law
def plans_depend_on_what_was_observed_alone(make: MakeStrategy) -> None:
    """Not on the time of day, on chance, or on what another one does."""
    for name, accept in ACCEPTING.items():
        one, other = Played(make(), accept), Played(make(), accept)
        Played(make(), ACCEPTING["none"]).round()
        for round in range(ROUNDS):
            one.round()
            other.round()
            with at(round):
                same = one.plans[-1] == other.plans[-1]
                told = f"plans {other.plans[-1]} where its like planned {one.plans[-1]}"
                require(same, f"{told}, with {name} accepted")


@law
def it_may_be_asked_before_it_has_heard(make: MakeStrategy) -> None:
    """A round without drafts is launched ahead: its `plan` comes before the last `observe`."""
    for accept in ACCEPTING.values():
        played = Played(make(), accept)
        for round in range(ROUNDS):
            played.round(ahead=round % 3 > 0)


@law
def it_is_host_code(make: MakeStrategy) -> None:
    """It touches no array, and draws from nobody's random numbers."""
    strategy = make()
    mx.random.seed(5)
    before, pythons = cast("list[mx.array]", mx.random.state)[0].tolist(), random.getstate()
    played = Played(strategy, ACCEPTING["some"])
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    for _ in range(ROUNDS):
        played.round()
    require(mx.get_peak_memory() <= held, "makes arrays")
    after = cast("list[mx.array]", mx.random.state)[0].tolist()
    require(before == after, "draws from mx.random")
    require(pythons == random.getstate(), "draws from random")


@law
def it_changes_no_text(make: MakeStrategy, target: SpeculativeModel) -> None:
    """Text after text, by one decoder: plain decoding's."""
    decoder = Decoder(target, make())
    for count in (1, 9):
        prompt = [(n * n + count) % target.vocab_size for n in range(count)]
        plain = [token.id for token in Decoder(target, Off()).generate(prompt, 20)]
        found = [token.id for token in decoder.generate(prompt, 20)]
        require(found == plain, f"after {count} tokens {found} instead of {plain}")
