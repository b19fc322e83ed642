"""A state machine that does to caches whatever a loop may do, in any order."""

from __future__ import annotations

import hypothesis.strategies as st
import mlx.core as mx
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from speculate.backends.adoption import adopt
from tests import tiny
from tests.backends.checks import refused
from tests.backends.driving import Caches, assert_same, holding
from tests.backends.layers import WHOLE_BLOCKS, consume, fresh, make

BLOCKS = st.lists(st.integers(0, tiny.VOCAB - 1), min_size=1, max_size=9)


class CacheMachine(RuleBasedStateMachine):
    """Compares caches with fresh ones that were fed the text that is left.

    Attributes:
        KIND: One of `layers.KINDS`, chosen by a subclass.
    """

    KIND = "rows"

    def __init__(self) -> None:
        super().__init__()
        self.kind = self.KIND
        self.caches: Caches = make(self.kind)
        self.text: list[int] = []
        self.blocks: list[int] = []  # widths fed since the start of speculation
        self.recording = False

    def _steps_are_cheap(self) -> bool:
        """Whether a long text costs nothing: rows do, a recurrence is a loop."""
        return self.kind.startswith(("rows", "quantised", "window"))

    @initialize(prompt=st.integers(0, 150))
    def prefill(self, prompt: int) -> None:
        prompt = prompt if self._steps_are_cheap() else prompt % 12
        if prompt:
            self.text = [n * n % tiny.VOCAB for n in range(prompt)]
            consume(self.kind, self.caches, self.text)

    @rule(tokens=BLOCKS)
    def feed(self, tokens: list[int]) -> None:
        consume(self.kind, self.caches, tokens)
        self.text += tokens
        if self.recording:
            self.blocks.append(len(tokens))

    @rule(tokens=st.lists(st.integers(0, tiny.VOCAB - 1), min_size=65, max_size=90))
    @precondition(lambda self: not self.recording and self._steps_are_cheap())
    def feed_a_long_chunk(self, tokens: list[int]) -> None:
        self.feed(tokens)

    @rule()
    def start(self) -> None:
        for cache in self.caches:
            cache.start_speculation()
        self.recording, self.blocks = True, []

    @rule()
    def stop(self) -> None:
        for cache in self.caches:
            cache.stop_speculation()
        self.recording, self.blocks = False, []

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(self._possible()))
        assert all(cache.can_trim(n) for cache in self.caches)
        assert [cache.trim(n) for cache in self.caches] == [n] * len(self.caches)
        self.text = self.text[: len(self.text) - n]
        left = sum(self.blocks) - n
        while sum(self.blocks) > left:
            surplus = min(sum(self.blocks) - left, self.blocks[-1])
            self.blocks[-1] -= surplus
            if not self.blocks[-1]:
                self.blocks.pop()

    def _possible(self) -> list[int]:
        total = sum(self.blocks)
        if self.kind not in WHOLE_BLOCKS:
            return list(range(min(total, 64) + 1))
        ends = [sum(self.blocks[-count:]) for count in range(1, len(self.blocks) + 1)]
        return [0, *(n for n in ends if n <= 64)] if ends else [0]

    @rule(beyond=st.integers(1, 300))
    def trim_too_much(self, beyond: int) -> None:
        for cache in self.caches:
            assert refused(cache.trim, len(self.text) + beyond)
            assert refused(cache.trim, -beyond)

    @rule()
    def hand_back_and_adopt(self) -> None:
        """The text goes on in mlx-lm's caches, which know no records."""
        stock = [cache.hand_back() for cache in self.caches]
        mx.eval([cache.arrays() for cache in self.caches])
        self.caches = adopt(stock)
        self.recording, self.blocks = False, []

    @invariant()
    def holds_the_text(self) -> None:
        expected = holding(fresh(self.kind, self.text))
        found = holding(self.caches)
        if self.kind.startswith("state"):
            # A state cannot tell how long its text is, once mlx-lm has had it.
            found.lengths[:] = expected.lengths
        assert_same(found, expected, f"{len(self.text)} tokens")
