"""The training loop that the models share: a budget of minutes, checkpoints, a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from tools.demo_models import optim
from tools.demo_models.training_ops import training_ops

Loss = Callable[..., mx.array]
"""Takes a batch's arrays and returns a vector; its first entry is minimised, all are logged."""

_SAVE_EVERY_S = 60.0


class Clock:
    """Measures how much of a budget of minutes is used up."""

    def __init__(self, minutes: float) -> None:
        self._begun, self._budget = time.monotonic(), 60 * minutes

    def done(self) -> float:
        """Returns the share that is gone; 1 or more when the time is up."""
        return (time.monotonic() - self._begun) / self._budget


def rate_at(done: float, peak: float) -> float:
    """Returns the rate: up in the first 2 %, level, down a cosine in the last half."""
    if done < 0.02:
        return peak * (done + 0.001) / 0.021
    fall = max(0.0, (done - 0.5) / 0.5)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(fall, 1.0))))


def windows(tokens: np.ndarray, batch: int, length: int, seed: int) -> Iterator[mx.array]:
    """Yields random stretches of the corpus, [batch, length], for ever."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(tokens) - length, batch)
        yield mx.array(tokens[starts[:, None] + np.arange(length)])


def flat(tree: Any) -> dict[str, mx.array]:
    """Returns a module's parameters by their dotted names."""
    return dict(cast(list[tuple[str, mx.array]], tree_flatten(tree)))


def save(module: nn.Module, path: Path) -> None:
    """Writes a checkpoint in one move, so that a killed run leaves the one before."""
    part = path.with_suffix(".part.safetensors")
    mx.save_safetensors(str(part), flat(module.parameters()))
    part.replace(path)


def fit(
    module: nn.Module,
    loss: Loss,
    batches: Iterator[tuple[mx.array, ...]],
    path: Path,
    *,
    minutes: float,
    peak: float,
) -> None:
    """Trains a module's trainable parameters until the time is up.

    Args:
        module: What is trained; `loss` must use it.
        loss: The loss of a batch.
        batches: What `loss` is called with.
        path: Where checkpoints go.
        minutes: How long, in wall time; the schedule follows it.
        peak: The highest rate.
    """
    values = flat(module.trainable_parameters())
    state = optim.begin(values)

    def losses(weights: optim.Tree, *batch: mx.array) -> tuple[mx.array, mx.array]:
        module.update(tree_unflatten(list(weights.items())))
        parts = loss(*batch)
        return parts[0], parts

    def step(
        weights: optim.Tree, state: optim.Tree, rate: mx.array, *batch: mx.array
    ) -> tuple[optim.Tree, optim.Tree, mx.array]:
        (_, parts), gradients = mx.value_and_grad(losses)(weights, *batch)
        weights, state = optim.update(weights, gradients, state, rate)
        return weights, state, parts

    compiled = mx.compile(step)
    clock, saved = Clock(minutes), time.monotonic()
    mean: np.ndarray | None = None
    with training_ops():
        for count, batch in enumerate(batches):
            done = clock.done()
            if done >= 1.0:
                break
            rate = mx.array(rate_at(done, peak))
            values, state, parts = compiled(values, state, rate, *batch)
            mx.eval(values, state, parts)
            now = np.array(parts)
            mean = now if mean is None else 0.95 * mean + 0.05 * now
            if count % 20 == 0:
                shown = " ".join(f"{x:.3f}" for x in mean)
                print(
                    f"step {count} done {done:.3f} rate {rate.item():.5f} loss {shown}", flush=True
                )
            if time.monotonic() - saved > _SAVE_EVERY_S:
                module.update(tree_unflatten(list(values.items())))
                save(module, path)
                saved = time.monotonic()
    module.update(tree_unflatten(list(values.items())))
    save(module, path)
