"""Trains the sliding-window mixture of experts on the corpus."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from tools.demo_models import fastmath, loop, models, tokenizer
from tools.demo_models.paths import work

BATCH, LENGTH = 16, 160


def dense_experts(self: Any, x: mx.array) -> mx.array:
    """Runs every expert on every row and drops what the router did not choose.

    Stock gathers rows per expert, which on a CPU is one product per row.  With four experts of
    which two count, two wasted products cost far less.
    """
    scores = self.router(x)
    chosen = mx.stop_gradient(mx.argpartition(scores, kth=-self.num_experts_per_tok, axis=-1))
    chosen = chosen[..., -self.num_experts_per_tok :]
    is_chosen = mx.any(chosen[..., None] == mx.arange(scores.shape[-1]), axis=-2)
    weights = fastmath.softmax(mx.where(is_chosen, scores, -1e9))

    def project(layer: Any, rows: mx.array) -> mx.array:
        out: mx.array = rows @ layer.weight.swapaxes(-1, -2) + layer.bias[:, None]
        return out

    rows = x.reshape(1, -1, x.shape[-1])
    experts = self.experts
    inner = experts.activation(project(experts.up_proj, rows), project(experts.gate_proj, rows))
    out = project(experts.down_proj, inner)  # [experts, rows, width]
    out = out * weights.reshape(-1, weights.shape[-1]).T[..., None]
    return mx.sum(out, axis=0).reshape(x.shape)


def _batches(resume: bool) -> Iterator[tuple[mx.array, ...]]:
    ids = tokenizer.token_ids(held_out=False)
    for window in loop.windows(ids, BATCH, LENGTH + 1, seed=2 + resume):
        yield (window,)


def run(minutes: float, *, resume: bool = False) -> None:
    """Trains for a while and leaves ``windowed.safetensors`` among the scratch files."""
    mx.set_default_device(mx.cpu)
    mx.random.seed(2)
    model = models.windowed()
    if resume:
        model.load_weights(str(work("windowed.safetensors")))

    def loss(window: mx.array) -> mx.array:
        scores = model(window[:, :-1])
        return mx.stack([fastmath.cross_entropy(scores, window[:, 1:]).mean()])

    with patch("mlx_lm.models.gpt_oss.MLPBlock.__call__", dense_experts):
        loop.fit(
            model, loss, _batches(resume), work("windowed.safetensors"), minutes=minutes, peak=0.02
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--resume", action="store_true", help="start from the checkpoint")
    args = parser.parse_args()
    run(args.minutes, resume=args.resume)
