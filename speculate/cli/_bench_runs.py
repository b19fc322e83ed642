"""The measurements of `speculate bench`: target forwards, and decoding with every setting."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from statistics import fmean
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.cli._models import available_proposers, strategy_for
from speculate.decoding.decoder import Decoder
from speculate.decoding.window import speculation
from speculate.protocols import Round, SpeculativeModel, Strategy

ROWS: Final = range(1, 10)
"""Widths, in tokens, of the forwards that are timed."""

REPEATS: Final = 9
"""Timed repeats of each width, after one warm-up. The fastest was disturbed least."""

DEPTHS: Final = (1, 3, 6)
"""Fixed draft depths to compare, in tokens."""

WARM_UP_TOKENS: Final = 16
"""Tokens that each setting decodes twice before measurements, from which the time is estimated."""

OFF: Final = "off"
ADAPTIVE: Final = "adaptive"
"""Names of the settings without drafts, and with `Adaptive`."""

Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""`stage(name, steps)` opens a stage of work; inside it, a call reports each finished step."""


@final
@attrs.frozen
class BenchRun:
    """Tokens and rounds of one prompt, by its index in the workload, with one setting."""

    workload: str
    prompt: int
    setting: str
    ids: Sequence[int]
    rounds: Sequence[Round]

    @property
    def seconds(self) -> float:
        """Total time of the rounds."""
        return sum(round.seconds for round in self.rounds)


@final
class Estimate:
    """The remaining time of so many runs of each setting, with so many tokens at most."""

    def __init__(self, settings: Collection[str], runs: int, tokens: int) -> None:
        self._left = dict.fromkeys(settings, runs)
        self._tokens = tokens
        self._expected: dict[str, float] = {}
        self._taken: dict[str, list[float]] = {}

    def warm_up(self, setting: str, tokens: int, seconds: float, rounds: float) -> None:
        """Record the total time of a warm-up run. The fastest of a setting counts.

        The time of the rounds grows with the tokens; the rest does not.
        """
        expected = seconds - rounds + rounds / tokens * self._tokens
        self._expected[setting] = min(expected, self._expected.get(setting, inf))

    def done(self, setting: str, seconds: float) -> None:
        """Record a measured run and its total time."""
        self._left[setting] -= 1
        self._taken.setdefault(setting, []).append(seconds)

    def left(self) -> float | None:
        """Seconds until the last run ends; `None` before every setting had a warm-up run."""
        if self._left.keys() != self._expected.keys():
            return None
        each = {**self._expected, **{name: fmean(taken) for name, taken in self._taken.items()}}
        return sum(runs * each[setting] for setting, runs in self._left.items())


def time_forwards(
    model: SpeculativeModel, ids: Sequence[int], done: Callable[[], None]
) -> dict[int, float]:
    """Seconds of the fastest target forward after a prompt, by width; `done` counts repeats."""
    cache = model.make_cache()
    arrays = [array for member in cache for array in member.arrays()]
    mx.eval(model.forward(mx.array([list(ids)], dtype=mx.uint32), cache).hidden, arrays)
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    with speculation(cache) as window:
        # Widths alternate, so that a change in the machine's speed affects all of them.
        for _ in range(1 + REPEATS):
            for rows in ROWS:
                fed = mx.array([(list(ids) * rows)[-rows:]], dtype=mx.uint32)
                began = time.perf_counter()
                out = model.forward(fed, cache)
                mx.eval(mx.argmax(out.logits[0], axis=-1))
                times[rows].append(time.perf_counter() - began)
                window.keep(0)
            done()
    return {rows: min(found[1:]) for rows, found in times.items()}


def settings_for(
    model: SpeculativeModel, draft: SpeculativeModel | None
) -> dict[str, Callable[[], Strategy]]:
    """Factories of the strategies to compare: each proposer at each depth, none, and `Adaptive`."""
    make = partial(strategy_for, model, draft=draft)
    fixed = {
        f"{name} {depth}": partial(make, [name], depth)
        for name in available_proposers(model, draft)
        for depth in DEPTHS
    }
    return {OFF: partial(make, [OFF], None), **fixed, ADAPTIVE: partial(make, None, None)}


def run_all(
    model: SpeculativeModel,
    settings: Mapping[str, Callable[[], Strategy]],
    workloads: Mapping[str, Sequence[Sequence[int]]],
    tokens: int,
    stop_tokens: Collection[int],
    stage: Stage,
    estimate: Estimate,
    clock: Callable[[], float] = time.perf_counter,
) -> list[BenchRun]:
    """Decode every prompt twice with every setting.

    Settings run forward and then in reverse (A B C C B A), so that a steady change in the
    machine's speed affects all of them alike. A stage is the warm-up, or one prompt; `estimate`
    gets the time of every run. The prompts are ids, and `tokens` is the limit of each run.
    """
    runs = []
    first = next(iter(workloads.values()))[0]
    order = [*settings, *reversed([*settings])]

    def run(name: str, prompt: Sequence[int], tokens: int) -> tuple[list[int], list[Round], float]:
        began, rounds = clock(), list[Round]()
        decoder = Decoder(model, settings[name](), observer=rounds.append)
        ids = [token.id for token in decoder.generate(prompt, tokens, stop_tokens=stop_tokens)]
        return ids, rounds, clock() - began

    with stage("warm-up", len(order)) as done:
        for name in order:
            ids, rounds, seconds = run(name, first, min(WARM_UP_TOKENS, tokens))
            estimate.warm_up(name, len(ids), seconds, sum(each.seconds for each in rounds))
            done()
    for workload, prompts in workloads.items():
        for index, prompt in enumerate(prompts):
            with stage(f"{workload} {index + 1} of {len(prompts)}", len(order)) as done:
                for name in order:
                    ids, rounds, seconds = run(name, prompt, tokens)
                    estimate.done(name, seconds)
                    runs.append(BenchRun(workload, index, name, ids, rounds))
                    done()
    return runs
