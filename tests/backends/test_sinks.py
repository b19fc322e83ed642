"""A window with sinks, compared with a list over random feeds, trims and checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable

import mlx.core as mx
import pytest

from speculate.backends.rotating import RewindableRotatingKVCache
from tests.support.cache_contents import to_list


class Tape:
    """A cache whose row `i` holds token `i` of a text, and that text.

    Attributes:
        text: What the cache was fed and still knows.
        may_come_back: Tokens that may be trimmed.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.window = self.dice.choice([2, 5, 6, 8, 20])
        self.keep = self.dice.choice([0, 1, min(4, self.window - 1), self.window - 1])
        self.cache = RewindableRotatingKVCache(self.window, self.keep)
        self.text: list[int] = []
        self.may_come_back = 0
        self.speculating = False
        self.held: list[tuple[list[int], Callable[[], None]]] = []

    def feed(self) -> None:
        count = self.dice.choice([1, 1, 1, 2, 3, 5, 9] * 6 + [40, 90, 200])
        tokens = [self.dice.randrange(10_000) for _ in range(count)]
        rows = mx.array(tokens, dtype=mx.float32)[None, None, :, None]
        seen = min(len(self.text), self.window - 1) + count
        self.text += tokens
        keys, values = self.cache.update_and_fetch(rows, -rows)
        if self.dice.random() < 0.3:
            mx.eval(self.cache.arrays())
        assert to_list(keys) == self.visible(seen)
        assert to_list(-values) == self.visible(seen)
        self.may_come_back = min(64, self.may_come_back + count) if self.speculating else 0

    def visible(self, count: int) -> list[int]:
        """The sinks and the last tokens, `count` in all."""
        if count == len(self.text):
            return self.text
        return self.text[: self.keep] + self.text[len(self.text) - (count - self.keep) :]

    def trim(self) -> None:
        n = self.dice.randint(0, self.may_come_back)
        assert self.cache.can_trim(n)
        self.cache.trim(n)
        self.may_come_back -= n
        self.text = self.text[: len(self.text) - n]

    def start_or_stop(self) -> None:
        self.speculating = self.dice.random() < 0.8
        if self.speculating:
            self.cache.start_speculation()
        else:
            self.cache.stop_speculation()
        self.may_come_back, self.held = 0, []

    def hold(self) -> None:
        self.held.append((list(self.text), self.cache.checkpoint()))

    def rewind(self) -> None:
        """Restore a checkpoint from before which nothing was trimmed since."""
        kept = [held for held in self.held if self.text[: len(held[0])] == held[0]]
        if kept:
            text, rewind = self.dice.choice(kept)
            rewind()
            self.text, self.may_come_back = list(text), 0
            self.held = [held for held in kept if len(held[0]) <= len(text)]

    def read(self) -> None:
        count = min(len(self.text), self.window)
        rows = self.cache.window(count)
        if rows is not None:
            assert to_list(rows[0]) == self.visible(count)


@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 2000), marks=pytest.mark.soak)], ids=str
)
def test_what_a_step_sees_is_what_a_list_holds(seeds: range) -> None:
    for seed in seeds:
        tape = Tape(seed)
        acts = [tape.feed] * 12 + [tape.trim] * 3 + [tape.start_or_stop] * 2
        acts += [tape.hold, tape.hold, tape.rewind, tape.read]
        for _ in range(150):
            tape.dice.choice(acts)()
