"""What a round costs on the host, outside of forwards: with a model that does nothing.

    python -m benchmarks.idle

The model hands out the same logits every time, and drafts are ids that are known. What is left is
the library's own work. It is timed by the clock of the thread that runs the loop, which stands
still while that waits for the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final, cast, final

import mlx.core as mx

import speculate as sp
from benchmarks import report
from benchmarks.spread import Spread
from speculate.backends.group import join
from speculate.backends.kv import RewindableKVCache
from speculate.protocols import Commit, Draft, DraftSampler, Forward, MTPHead, Rollbackable

DEPTH: Final = 4
LAYERS: Final = 24
VOCABULARY: Final = 1024
WIDTH: Final = 64
TOKEN: Final = 3
"""Which the model wants every time."""
ROUNDS: Final = 400
REPEATS: Final = 9
GOAL: Final = 150.0
"""Microseconds."""


@final
class Nothing:
    """A model without weights: it moves the offsets of its caches on, and that is all."""

    def __init__(self) -> None:
        wanted = mx.arange(VOCABULARY) == TOKEN
        self._logits = mx.broadcast_to(wanted.astype(mx.float32), (1, 64, VOCABULARY)) + 0
        self._hidden = mx.zeros((1, 64, WIDTH))
        mx.eval(self._logits, self._hidden)

    @property
    def vocab_size(self) -> int:
        return VOCABULARY

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def head(self) -> MTPHead | None:
        return None

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return None

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        layers: list[Rollbackable] = [RewindableKVCache(position) for _ in range(LAYERS)]
        return join(layers)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        """There is nothing in a cache: a fresh one is as good."""
        return self.make_cache()

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        count = tokens.shape[1]
        for layer in cache:
            cast(RewindableKVCache, layer).offset += count
        return Forward(self._logits[:, :count], self._hidden[:, :count])


@final
class Known:
    """Drafts what the model wants, or never does.

    Args:
        right: Which of the two.
    """

    def __init__(self, right: bool) -> None:
        self._draft = Draft(mx.full((DEPTH,), TOKEN if right else TOKEN + 1, dtype=mx.uint32))
        self._position = 0

    @property
    def name(self) -> str:
        return "known"

    def attach(self, target: object, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return self._draft

    def settle(self) -> None:
        """Has no cache."""


def microseconds(strategy: sp.Off | sp.Fixed, tokens: int, rounds: int) -> float:
    """Median host time of a round of so many tokens."""
    decoder = sp.Decoder(Nothing(), strategy)
    stream = decoder.generate([1, 2, 3], max_tokens=-1)
    times = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(tokens):
            next(stream)
        times.append((time.thread_time_ns() - began) / 1000)
    stream.close()
    return statistics.median(times)


def main() -> None:
    options = report.options(__doc__)
    rounds = options.some(ROUNDS, 100)
    right, wrong = sp.Fixed(Known(True), DEPTH), sp.Fixed(Known(False), DEPTH)
    ways: dict[str, tuple[sp.Off | sp.Fixed, int]] = {
        "no draft": (sp.Off(), 1),
        "4 drafts, all rejected": (wrong, 1),
        "4 drafts, all accepted": (right, 1 + DEPTH),
    }
    found = {
        name: [microseconds(strategy, tokens, rounds) for _ in range(options.some(REPEATS, 5))]
        for name, (strategy, tokens) in ways.items()
    }
    rows = [["a round", "microseconds", "lowest"]]
    rows += [
        [name, f"{Spread.of(values).median:.0f}", f"{min(values):.0f}"]
        for name, values in found.items()
    ]
    table = report.Table(f"Host time of a round outside of forwards, {LAYERS} layers", rows)
    report.save(options, "idle", [table], {"goal": GOAL, "microseconds": found})


if __name__ == "__main__":
    main()
