"""The target's own text, and losses that follow its choices.

Speculation is measured where decoding goes: along the target's own continuation.  So the head
and the draft model get their last training there, on the target as it ships (rounded weights).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from tools.demo_models import export, fastmath, loop, models, tokenizer
from tools.demo_models.paths import work

PROMPT, LENGTH, ROWS = 64, 256, 192
"""Each generated row: its real beginning, its whole length; and rows decoded at once."""

_HARD = 0.5


@dataclass(frozen=True)
class Teacher:
    """What students need of the frozen target.

    Attributes:
        embedding: The tied embedding, [vocabulary, D].
    """

    embedding: mx.array

    @staticmethod
    def load() -> Teacher:
        """Reads the rounded target."""
        model = export.load_hybrid("rounded.safetensors")
        return Teacher(model.embed.weight)


def wanted(scores: mx.array) -> mx.array:
    """Mixes the target's distribution with its first choice, which greedy decoding takes."""
    first = mx.argmax(scores, axis=-1, keepdims=True) == mx.arange(scores.shape[-1])
    return mx.stop_gradient(_HARD * first + (1 - _HARD) * fastmath.softmax(scores))


def _continue(model: models.Hybrid, prompts: mx.array) -> tuple[np.ndarray, np.ndarray]:
    """Decodes greedily from prompts; returns tokens and final hidden rows of whole sequences."""
    trunk = model.language_model
    cache = make_prompt_cache(trunk)
    hidden = trunk.model(prompts, cache)
    rows, tokens = [hidden], [prompts]
    while sum(x.shape[1] for x in tokens) < LENGTH:
        token = mx.argmax(model.embed.as_linear(hidden[:, -1:]), axis=-1)
        hidden = trunk.model(token, cache)
        mx.eval(hidden, token)
        tokens.append(token)
        rows.append(hidden)
    text, states = mx.concatenate(tokens, axis=1), mx.concatenate(rows, axis=1)
    return np.array(text), np.array(states.astype(mx.float16))


def run(minutes: float, seed: int) -> None:
    """Generates text for a while and leaves ``generated_*.npz`` parts among the scratch files."""
    mx.set_default_device(mx.cpu)
    model = export.load_hybrid("rounded.safetensors")
    model.eval()
    clock = loop.Clock(minutes)
    ids = tokenizer.token_ids(held_out=False)
    for part, prompts in enumerate(loop.windows(ids, ROWS, PROMPT, seed=seed)):
        if clock.done() >= 1.0:
            break
        text, states = _continue(model, prompts)
        np.savez(work(f"generated_{seed}_{part}.npz"), tokens=text, hidden=states)
        print(f"part {part} done {clock.done():.2f}", flush=True)


def batches(rows: int, length: int, seed: int) -> Iterator[tuple[mx.array, mx.array]]:
    """Yields random stretches of the generated text: tokens [rows, length] and hidden rows."""
    parts = [np.load(p) for p in sorted(work("x").parent.glob("generated_*.npz"))]
    tokens = np.concatenate([p["tokens"] for p in parts])
    hidden = np.concatenate([p["hidden"] for p in parts])
    rng = np.random.default_rng(seed)
    while True:
        chosen = rng.integers(0, len(tokens), rows)[:, None]
        start = rng.integers(0, LENGTH - length + 1, rows)[:, None]
        columns = start + np.arange(length)
        states = hidden[chosen, columns].astype(np.float32)
        yield mx.array(tokens[chosen, columns]), mx.array(states)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    run(args.minutes, args.seed)
