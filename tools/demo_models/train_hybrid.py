"""Trains the target and its head together on the corpus."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import mlx.core as mx

from tools.demo_models import fastmath, loop, models, mtp_head, tokenizer
from tools.demo_models.paths import work

SHORT, LONG = (16, 128), (8, 256)
"""Batches' (rows, tokens): long ones cost more a token, so they come in the last third only."""
HEAD_SHARE = 0.4


def _batches(minutes: float) -> Iterator[tuple[mx.array, ...]]:
    ids = tokenizer.token_ids(held_out=False)
    short, long = (loop.windows(ids, b, t + 2, seed=1) for b, t in (SHORT, LONG))
    turn = time.monotonic() + 60 * minutes * 2 / 3
    while True:
        yield (next(short if time.monotonic() < turn else long),)


def run(minutes: float, *, resume: bool = False) -> None:
    """Trains for a while and leaves ``hybrid.safetensors`` among the scratch files."""
    mx.set_default_device(mx.cpu)
    mx.random.seed(1)
    model = models.hybrid()
    if resume:
        model.load_weights(str(work("hybrid.safetensors")))

    def loss(window: mx.array) -> mx.array:
        hidden = model.trunk(window[:, :-2])
        (ahead,) = mtp_head.chain(model.head, model.embed, hidden, window[:, 1:-1], 1)
        first = fastmath.cross_entropy(model.embed.as_linear(hidden), window[:, 1:-1]).mean()
        second = fastmath.cross_entropy(model.embed.as_linear(ahead), window[:, 2:]).mean()
        return mx.stack([first + HEAD_SHARE * second, first, second])

    loop.fit(model, loss, _batches(minutes), work("hybrid.safetensors"), minutes=minutes, peak=0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--resume", action="store_true", help="start from the checkpoint")
    args = parser.parse_args()
    run(args.minutes, resume=args.resume)
