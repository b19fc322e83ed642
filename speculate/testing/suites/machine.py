"""A state machine that does to caches whatever a loop may do, in any order."""

from __future__ import annotations

from typing import final

import hypothesis.strategies as st
import mlx.core as mx
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from speculate.testing.broken import law
from speculate.testing.feeding import Fed, Mark
from speculate.testing.kinds import CacheKind

WIDTHS = st.integers(1, 9)
RECORDED = 64
"""Tokens that can be taken back, if so many were fed."""


class CacheMachine(RuleBasedStateMachine):
    """Feeds blocks of changing width, marks and returns, trims, stops, fails and hands back.

    Whatever goes on with the text is compared with mlx-lm's own cache.

    Args:
        kind: The caches.
    """

    def __init__(self, kind: CacheKind) -> None:
        super().__init__()
        self.kind = kind
        self.fed: Fed = Fed(kind)
        self.marks: list[Mark] = []
        self.blocks: list[int] = []  # widths that were fed and not taken back
        self.reach: int = 0  # how many of the newest tokens are recorded for sure
        self.recording: bool = False

    def on_text(self) -> bool:
        """Whether nothing but the text is in the caches."""
        return self.fed.right == self.fed.length

    @precondition(lambda self: self.on_text())
    @rule(width=st.sampled_from([1, 1, 2, 3, 5, 9, 70]))
    def feed(self, width: int) -> None:
        self.fed.feed(width)
        self.note(width)

    @precondition(lambda self: self.recording or self.marks)
    @rule(right=st.integers(0, 5), wrong=WIDTHS)
    def feed_what_will_be_taken_back(self, right: int, wrong: int) -> None:
        right = right if self.on_text() else 0
        self.fed.feed(right, wrong)
        self.note(right + wrong)

    def note(self, width: int) -> None:
        """A block was fed."""
        self.blocks.append(width)
        self.reach = min(RECORDED, self.reach + width)

    def forget(self) -> None:
        """Nothing that was fed so far can be taken back."""
        self.blocks, self.reach = [], 0

    @precondition(lambda self: self.on_text())
    @rule()
    def start(self) -> None:
        self.fed.start()
        self.recording = True
        self.forget()

    @precondition(lambda self: self.on_text())
    @rule()
    def stop(self) -> None:
        self.fed.stop()
        self.recording = False

    @rule()
    def mark(self) -> None:
        self.marks.append(self.fed.mark())

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def return_to_a_mark(self, data: st.DataObject) -> None:
        depth = data.draw(st.integers(0, len(self.marks) - 1), label="mark")
        self.marks = self.marks[: depth + 1]
        self.fed.return_to(self.marks[-1])
        self.forget()

    @precondition(lambda self: self.recording and self.possible() != [0])
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(self.possible()), label="n")
        self.fed.trim(n)
        # A mark holds as long as nothing from before it was taken back.
        self.marks = [mark for mark in self.marks if mark.length <= self.fed.length]
        self.reach -= n
        while n:
            part = min(n, self.blocks[-1])
            self.blocks[-1] -= part
            n -= part
            if not self.blocks[-1]:
                self.blocks.pop()

    def possible(self) -> list[int]:
        """Numbers of tokens that can be taken back."""
        ends = [sum(self.blocks[index:]) for index in range(len(self.blocks))]
        every = ends if self.kind.whole_blocks else range(1, self.reach + 1)
        return [0, *(n for n in every if n <= self.reach)]

    @rule(beyond=st.integers(1, 300))
    def ask_for_too_much(self, beyond: int) -> None:
        self.fed.refuses(self.fed.length + beyond)
        self.fed.refuses(-beyond)
        self.fed.check_lengths()

    @rule(width=WIDTHS, after=st.integers(0, 3))
    def fail(self, width: int, after: int) -> None:
        self.fed.fail(width, min(after, len(self.kind.layers)))

    @precondition(lambda self: self.on_text())
    @rule()
    def hand_back_and_adopt(self) -> None:
        self.fed.go_on_with(self.kind.adopt(self.fed.hand_back()))
        self.recording, self.marks = False, []
        self.forget()

    def teardown(self) -> None:
        on_text = [mark for mark in self.marks if mark.right == mark.length]
        if not self.on_text() and on_text:
            self.fed.return_to(on_text[-1])
        if self.on_text():
            self.fed.feed(1)
            mx.eval([cache.arrays() for cache in self.fed.caches])


@law
def anything_in_any_order_leaves_the_text(
    kind: CacheKind, *, examples: int = 12, steps: int = 20, number: int | None = None
) -> None:
    """Drive caches at random.

    Args:
        kind: The caches.
        examples: Runs.
        steps: Of each run.
        number: Seeds the runs; the same ones every time if left out.
    """

    @final
    class Machine(CacheMachine):
        def __init__(self) -> None:
            super().__init__(kind)

    run_state_machine_as_test(
        Machine if number is None else seed(number)(Machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=number is None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            # Shrinking takes minutes, and a run has few steps.
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
