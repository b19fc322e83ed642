"""Trains the head alone, three tokens deep, on the finished target's own text."""

from __future__ import annotations

import argparse

import mlx.core as mx

from tools.demo_models import distill, export, fastmath, loop, mtp_head
from tools.demo_models.paths import work

DEPTHS = (1.0, 0.7, 0.5)
"""How much each depth's loss counts."""


def round_target() -> None:
    """Rounds the finished target to what ships and leaves ``rounded.safetensors``."""
    model = export.load_hybrid()
    export.round_weights(model)
    loop.save(model, work("rounded.safetensors"))


def run(minutes: float) -> None:
    """Trains for a while and leaves ``head.safetensors`` among the scratch files."""
    mx.set_default_device(mx.cpu)
    teacher = export.load_hybrid("rounded.safetensors")
    teacher.freeze()
    head, embed = teacher.head, teacher.embed
    head.unfreeze()
    table = mx.array(embed.weight)

    def loss(tokens: mx.array, hidden: mx.array) -> mx.array:
        outs = mtp_head.chain(head, embed, hidden[:, :-1], tokens[:, 1:], len(DEPTHS))
        wanted = distill.wanted(hidden[:, 1:] @ table.T)
        parts = [
            fastmath.soft_cross_entropy(out[:, d:] @ table.T, wanted[:, d:]).mean()
            for d, out in enumerate(outs)
        ]
        return mx.stack(
            [sum((w * p for w, p in zip(DEPTHS, parts, strict=True)), mx.array(0.0)), *parts]
        )

    batches = distill.batches(8, 256, seed=6)
    loop.fit(head, loss, batches, work("head.safetensors"), minutes=minutes, peak=0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--round", action="store_true", help="round the target and stop")
    args = parser.parse_args()
    if args.round:
        round_target()
    else:
        run(args.minutes)
