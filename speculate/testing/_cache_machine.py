"""A state machine that applies the operations of a decoding loop to caches, in any order."""

from __future__ import annotations

from typing import final

import hypothesis
import hypothesis.strategies as st
import mlx.core as mx
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from speculate._mx import arrays_of
from speculate.backends.group import RECORD_WINDOW
from speculate.testing._cache_harness import CacheCheckpoint, CacheRun, CacheSpec


class CacheMachine(RuleBasedStateMachine):
    """Feeds blocks, checkpoints, restores, trims, stops, fails, releases and adopts."""

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__()
        self.spec = spec
        self.run: CacheRun = CacheRun(spec)
        self.checkpoints: list[CacheCheckpoint] = []
        self.starts: list[int] = []  # positions of the blocks that were fed and not trimmed
        self.recorded: int = 0  # how many of the last tokens are certainly recorded

    def on_sequence(self) -> bool:
        """Whether the caches hold nothing but tokens of the sequence."""
        return self.run.right == self.run.length

    @precondition(lambda self: self.on_sequence())
    @rule(width=st.sampled_from([1, 1, 2, 3, 5, 9, 70]))
    def feed(self, width: int) -> None:
        self.feed_block(width)

    @precondition(lambda self: self.run.recording or self.checkpoints)
    @rule(right=st.integers(0, 5), wrong=st.integers(1, 9))
    def feed_wrong_tokens(self, right: int, wrong: int) -> None:
        self.feed_block(right if self.on_sequence() else 0, wrong)

    def feed_block(self, right: int, wrong: int = 0) -> None:
        self.starts.append(self.run.length)
        self.recorded = min(RECORD_WINDOW, self.recorded + right + wrong)
        self.run.feed(right, wrong)

    def drop_records(self) -> None:
        """Expect that nothing fed so far can be trimmed."""
        self.starts, self.recorded = [], 0

    @precondition(lambda self: self.on_sequence())
    @rule()
    def start(self) -> None:
        self.run.start()
        self.drop_records()

    @precondition(lambda self: self.on_sequence())
    @rule()
    def stop(self) -> None:
        self.run.stop()

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints.append(self.run.checkpoint())

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        depth = data.draw(st.integers(0, len(self.checkpoints) - 1), label="checkpoint")
        self.checkpoints = self.checkpoints[: depth + 1]
        self.run.restore(self.checkpoints[-1])
        self.drop_records()

    @precondition(lambda self: self.run.recording and self.possible() != [0])
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(self.possible()), label="n")
        self.run.trim(n)
        # A checkpoint is valid until something from before it is trimmed.
        self.checkpoints = [c for c in self.checkpoints if c.length <= self.run.length]
        self.starts = [start for start in self.starts if start < self.run.length]
        self.recorded -= n

    def possible(self) -> list[int]:
        """Numbers of tokens that can be trimmed."""
        blocks = [self.run.length - start for start in self.starts]
        every = blocks if self.spec.whole_blocks else range(1, self.recorded + 1)
        return [0, *(n for n in every if n <= self.recorded)]

    @rule(excess=st.integers(1, 300))
    def trim_too_much(self, excess: int) -> None:
        self.run.refuses(self.run.length + excess)
        self.run.refuses(-excess)
        self.run.check_lengths()

    @rule(width=st.integers(1, 9), after=st.integers(0, 3))
    def fail(self, width: int, after: int) -> None:
        self.run.fail(width, min(after, len(self.spec.layers)))

    @precondition(lambda self: self.on_sequence())
    @rule()
    def hand_back_and_adopt(self) -> None:
        self.run.continue_with(self.spec.adopt(self.run.release()))
        self.checkpoints = []
        self.drop_records()

    def teardown(self) -> None:
        on_sequence = [c for c in self.checkpoints if c.right == c.length]
        if not self.on_sequence() and on_sequence:
            self.run.restore(on_sequence[-1])
        if self.on_sequence():
            self.run.feed(1)
            mx.eval(arrays_of(self.run.caches))


def run_machine(spec: CacheSpec, examples: int, steps: int, seed: int | None) -> None:
    """Run the state machine: the arguments are those of the contract."""

    @final
    class Machine(CacheMachine):
        def __init__(self) -> None:
            super().__init__(spec)

    run_state_machine_as_test(
        Machine if seed is None else hypothesis.seed(seed)(Machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=seed is None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            # Shrinking takes minutes, and a run has few steps.
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
