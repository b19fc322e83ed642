"""Trains the draft model: first on the corpus, then on what the target would say."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import mlx.core as mx

from tools.demo_models import distill, fastmath, loop, models, tokenizer
from tools.demo_models.paths import work

BATCH, LENGTH = 16, 128


def _batches() -> Iterator[tuple[mx.array, ...]]:
    ids = tokenizer.token_ids(held_out=False)
    for window in loop.windows(ids, BATCH, LENGTH + 1, seed=3):
        yield (window,)


def run(minutes: float) -> None:
    """Trains on the corpus and leaves ``draft.safetensors`` among the scratch files."""
    mx.set_default_device(mx.cpu)
    mx.random.seed(3)
    model = models.draft()

    def loss(window: mx.array) -> mx.array:
        scores = model(window[:, :-1])
        return mx.stack([fastmath.cross_entropy(scores, window[:, 1:]).mean()])

    loop.fit(model, loss, _batches(), work("draft.safetensors"), minutes=minutes, peak=0.02)


def follow(minutes: float) -> None:
    """Trains on the target's own text and scores; replaces ``draft.safetensors``."""
    mx.set_default_device(mx.cpu)
    model = models.draft()
    model.load_weights(str(work("draft.safetensors")))
    table = distill.Teacher.load().embedding

    def loss(tokens: mx.array, hidden: mx.array) -> mx.array:
        wanted = distill.wanted(hidden @ table.T)
        return mx.stack([fastmath.soft_cross_entropy(model(tokens), wanted).mean()])

    batches = distill.batches(8, 256, seed=4)
    loop.fit(model, loss, batches, work("draft.safetensors"), minutes=minutes, peak=0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--follow", action="store_true", help="the second of the two phases")
    args = parser.parse_args()
    (follow if args.follow else run)(args.minutes)
