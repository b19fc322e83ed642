"""A state machine that opens windows, feeds, keeps, fails and leaves, in any order."""

from __future__ import annotations

from contextlib import ExitStack

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from speculate import Window, speculation
from tests.support import tiny
from tests.support.cache_contents import Caches, assert_same, holding, refused, to_list
from tests.support.caches_by_kind import consume, fresh, group, make

TOKENS = st.integers(0, tiny.VOCAB - 1)
BLOCKS = st.lists(TOKENS, min_size=1, max_size=9)


class WindowMachine(RuleBasedStateMachine):
    """Compares what is cached and what is owed with the text that was kept.

    Attributes:
        KIND: One of `layers.KINDS`, chosen by a subclass.
    """

    KIND = "rows"

    def __init__(self) -> None:
        super().__init__()
        self.kind = self.KIND
        self.caches: Caches = make(self.kind)
        self.stack = ExitStack()
        self.window: Window | None = None
        self.kept: list[int] = []
        self.fed: list[int] = []

    @rule(tokens=BLOCKS)
    def feed(self, tokens: list[int]) -> None:
        if len(self.fed) + len(tokens) > 32:
            return
        consume(self.kind, self.caches, tokens)
        if self.window is None:
            self.kept += tokens
        else:
            self.fed += tokens
            assert self.window.fed() == len(self.fed)

    @precondition(lambda self: self.window is None)
    @rule()
    def enter(self) -> None:
        self.window = self.stack.enter_context(speculation(self.caches))

    @precondition(lambda self: self.window is not None)
    @rule()
    def leave(self) -> None:
        self.stack.close()
        self.window, self.fed = None, []

    @precondition(lambda self: self.window is not None)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        assert self.window is not None
        m = data.draw(st.integers(0, len(self.fed)))
        self.window.keep(m)
        self.kept += self.fed[:m]
        self.fed = []
        assert self.window.fed() == 0

    @precondition(lambda self: self.window is not None)
    @rule(beyond=st.integers(1, 9))
    def keep_too_much(self, beyond: int) -> None:
        window = self.window
        assert window is not None
        assert refused(window.keep, len(self.fed) + beyond)
        assert refused(window.keep, -beyond)

    @precondition(lambda self: self.window is not None)
    @rule(tokens=BLOCKS, layers=st.integers(0, 3))
    def fail(self, tokens: list[int], layers: int) -> None:
        """A forward that raises after some of the layers."""
        before = holding(self.caches)
        if len(self.fed) + len(tokens) > 32:
            return
        try:
            consume(self.kind, self.caches, tokens, fail_after=layers)
        except ZeroDivisionError:
            assert_same(holding(self.caches), before, f"failed after {layers} layers")
        else:
            raise AssertionError("did not fail")

    @invariant()
    def holds_the_text(self) -> None:
        text = [*self.kept, *self.fed]
        owed = group(self.caches).to_replay()
        rows = [] if owed is None else to_list(owed)
        assert rows == text[len(text) - len(rows) :], "owes what is not the end of the text"
        cached = text[: len(text) - len(rows)]
        assert_same(holding(self.caches), holding(fresh(self.kind, cached)), f"{len(text)} tokens")

    def teardown(self) -> None:
        self.stack.close()
