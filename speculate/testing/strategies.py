"""`StrategyTests`: the contracts of `Strategy`, for authors of strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, final

import mlx.core as mx

from speculate.backends.group import RECORD_WINDOW
from speculate.decoding.decoder import Decoder
from speculate.protocols import Plan, Round, SpeculativeModel, Strategy
from speculate.strategies.fixed import MAX_DEPTH, Off
from speculate.testing.contract import at_step, contract, require, same_random_state
from speculate.testing.toy import ToyHead, ToyModel

Accept = Callable[[int, int], int]
"""How many drafted tokens are accepted, given the round and how many were drafted."""

ACCEPTING: Final[Mapping[str, Accept]] = {
    "all": lambda round, drafted: drafted,
    "none": lambda round, drafted: 0,
    "one": lambda round, drafted: min(1, drafted),
    "some": lambda round, drafted: (7 * round + 3 * round // 5) % (drafted + 1),
}
"""Outcomes of verification by name."""

ROUNDS: Final = 200
"""Rounds that a strategy plans in each contract."""


@final
class StrategyRun:
    """A strategy that begins a sequence and plans its rounds, without a model.

    `plans` are the name of the planned proposer, and the depth, round by round.
    """

    def __init__(self, strategy: Strategy, accept: Accept) -> None:
        self._strategy = strategy
        self._accept = accept
        self._emitted = 0
        self._unobserved: list[Round] = []
        self.plans: list[tuple[str | None, int]] = []
        strategy.begin()

    def round(self, remaining: int | None = None, *, ahead: bool = False) -> None:
        """Plan one round; with `ahead`, the next one is planned before this one is observed."""
        index = len(self.plans)
        with at_step(index, self._emitted):
            plan = self._strategy.plan(remaining)
            check_plan(plan, self._strategy)
        self.plans.append((None if plan.proposer is None else plan.proposer.name, plan.depth))
        drafted = plan.depth if remaining is None else min(plan.depth, remaining - 1)
        accepted = self._accept(index, drafted)
        self._emitted += 1 + accepted
        finished = Round(
            index=index,
            proposer=plan.proposer.name if plan.proposer and drafted else None,
            planned=plan.depth,
            drafted=drafted,
            accepted=accepted,
            emitted=1 + accepted,
            truncated=remaining == 1 + accepted,
            # The time of a machine that is limited by reading its weights once per pass.
            seconds=0.01 + 0.001 * drafted,
            context=self._emitted,
        )
        self._unobserved.append(finished)
        with at_step(index, self._emitted):
            while len(self._unobserved) > ahead:
                self._strategy.observe(self._unobserved.pop(0))


def check_plan(plan: Plan, strategy: Strategy) -> None:
    """Check that a plan can be carried out."""
    if plan.proposer is None:
        require(plan.depth == 0, f"plans {plan.depth} drafts without a proposer")
        return
    name = plan.proposer.name
    known = any(plan.proposer is proposer for proposer in strategy.proposers)
    require(known, f"plans '{name}', which is not among its proposers and sees no commits")
    plans = f"plans {plan.depth} drafts by '{name}': plan"
    require(plan.depth >= 1, f"{plans} at least 1, or Plan() for a round without")
    deepest = f"at most {MAX_DEPTH}, since caches record {RECORD_WINDOW} tokens"
    require(plan.depth <= MAX_DEPTH, f"{plans} {deepest}")


class StrategyTests(ABC):
    """Tests a strategy: derive a class `Test...` and say how to make a strategy."""

    @abstractmethod
    def make_strategy(self) -> Strategy:
        """Return a fresh strategy with its own proposers. If it has a clock, use a fake one."""

    def target(self) -> SpeculativeModel:
        """Return the model to decode with: a `ToyModel` with a head, unless overridden."""
        return ToyModel(head=ToyHead())

    @contract
    def test_proposers_have_distinct_and_stable_names(self) -> None:
        """No two proposers share a name, and `proposers` returns the same ones every time."""
        strategy = self.make_strategy()
        names = [proposer.name for proposer in strategy.proposers]
        require(len(set(names)) == len(names), f"two proposers share a name: {names}")
        StrategyRun(strategy, ACCEPTING["some"]).round()
        again = [proposer.name for proposer in strategy.proposers]
        require(names == again, f"has proposers {names}, and later {again}")

    @contract
    def test_plans_can_be_carried_out(self) -> None:
        """Plans are valid whatever is accepted, and however many tokens remain."""
        for accept in ACCEPTING.values():
            run = StrategyRun(self.make_strategy(), accept)
            for round in range(ROUNDS):
                run.round((None, 1, 2, 3, 1000)[round % 5])

    @contract
    def test_plans_depend_on_observations_alone(self) -> None:
        """Plans depend neither on time of day nor on chance nor on other strategies."""
        for name, accept in ACCEPTING.items():
            one = StrategyRun(self.make_strategy(), accept)
            other = StrategyRun(self.make_strategy(), accept)
            StrategyRun(self.make_strategy(), ACCEPTING["none"]).round()
            for round in range(ROUNDS):
                one.round()
                other.round()
                with at_step(round):
                    same = one.plans[-1] == other.plans[-1]
                    said = f"plans {other.plans[-1]} where an equal one planned {one.plans[-1]}"
                    require(same, f"{said}, with {name} accepted")

    @contract
    def test_plan_may_precede_the_last_observe(self) -> None:
        """With lookahead, a round is planned before the last one is observed."""
        for accept in ACCEPTING.values():
            run = StrategyRun(self.make_strategy(), accept)
            for round in range(ROUNDS):
                run.round(ahead=round % 3 > 0)

    @contract
    def test_it_uses_neither_arrays_nor_random_numbers(self) -> None:
        """Planning makes no arrays and draws no random numbers."""
        run = StrategyRun(self.make_strategy(), ACCEPTING["some"])
        with same_random_state():
            mx.reset_peak_memory()
            held = mx.get_active_memory()
            for _ in range(ROUNDS):
                run.round()
            require(mx.get_peak_memory() <= held, "makes arrays")

    @contract
    def test_output_is_that_of_plain_decoding(self) -> None:
        """A decoder with this strategy emits the tokens of plain decoding, prompt after prompt."""
        target = self.target()
        decoder = Decoder(target, self.make_strategy())
        for count in (1, 9):
            prompt = [(n * n + count) % target.vocab_size for n in range(count)]
            plain = [token.id for token in Decoder(target, Off()).generate(prompt, 20)]
            found = [token.id for token in decoder.generate(prompt, 20)]
            require(found == plain, f"after {count} tokens {found} instead of {plain}")
