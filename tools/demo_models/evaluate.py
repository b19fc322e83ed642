"""Measures how far drafts survive along each target's own greedy continuation.

Survival at depth d: how often the first d drafts are all right.  A chain's later drafts follow
from its earlier ones, and these only count while they are right, so one pass over the finished
continuation gives what decoding would: no loop over starts is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from tools.demo_models import corpus, export, models, mtp_head, prompts, tokenizer
from tools.demo_models.paths import DRAFT, HYBRID, PROMPTS, WINDOWED

DEPTH, NEW_TOKENS = 4, 128


def code_prompts() -> list[list[int]]:
    """Returns the bundled code prompts and cuts from all over the held-out modules."""
    texts = [p.read_text(encoding="utf-8") for p in sorted(PROMPTS.glob("code_*.txt"))]
    for text in corpus.code(held_out=True):
        lines = len(text.splitlines())
        texts += [prompts.cut(text, int(lines * share), 120) for share in (0.3, 0.7) if lines > 120]
    return [tokenizer.load().encode(text).ids for text in texts]


def prose_prompts() -> list[list[int]]:
    """Returns the bundled prose prompts."""
    texts = [p.read_text(encoding="utf-8") for p in sorted(PROMPTS.glob("prose_*.txt"))]
    return [tokenizer.load().encode(text).ids for text in texts]


def continued(model: nn.Module, prompt: list[int], count: int = NEW_TOKENS) -> list[int]:
    """Returns the prompt and the model's greedy continuation."""
    cache, tokens = make_prompt_cache(model), list(prompt)
    pending = mx.array([prompt])
    for _ in range(count):
        tokens.append(int(np.array(mx.argmax(model(pending, cache)[0, -1]))))
        if tokens[-1] == tokenizer.EOS_ID:
            break
        pending = mx.array([tokens[-1:]])
    return tokens


def survival(hits: list[np.ndarray], first: int) -> np.ndarray:
    """Counts chains.

    Args:
        hits: For each depth, whether the draft for each position of the text is right.
        first: The first position that a chain drafts.

    Returns:
        [chains that reached each depth with every draft right, ..., all chains].
    """
    starts = range(first, len(hits[0]) - len(hits) + 1)
    alive = [[all(hits[m][s + m] for m in range(d + 1)) for s in starts] for d in range(len(hits))]
    return np.array([*(sum(row) for row in alive), len(starts)])


def draft_hits(draft: nn.Module, tokens: list[int]) -> list[np.ndarray]:
    """Tells where a draft model is right; given a right text, at every depth alike."""
    guess = np.array(mx.argmax(draft(mx.array([tokens[:-1]]))[0], axis=-1))
    right = np.concatenate([[False], guess == np.array(tokens[1:])])
    return [right] * DEPTH


def head_hits(target: nn.Module, head: models.Hybrid, tokens: list[int]) -> list[np.ndarray]:
    """Tells where each depth of the head is right."""
    text = mx.array([tokens])
    hidden = target.language_model.model(text)
    outs = mtp_head.chain(head.head, head.embed, hidden[:, :-1], text[:, 1:], DEPTH)
    hits = []
    for out in outs:
        guess = np.array(mx.argmax(head.embed.as_linear(out)[0, :-1], axis=-1))
        hits.append(np.concatenate([[False, False], guess == np.array(tokens[2:])]))
    return hits


def _shares(counts: Iterable[np.ndarray]) -> str:
    total = np.sum(list(counts), axis=0)
    return "  ".join(f"{x:.3f}" for x in total[:-1] / total[-1]) + f"   ({total[-1]} chains)"


def shipped_head(folder: Path = HYBRID) -> models.Hybrid:
    """Reads the target's folder, head and all, with the quantised weights expanded."""
    stored = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    plain = {}
    for name, value in stored.items():
        stem = name.removesuffix(".weight")
        if f"{stem}.scales" in stored and name.endswith(".weight"):
            scales, biases = stored[f"{stem}.scales"], stored[f"{stem}.biases"]
            value = mx.dequantize(value, scales, biases, export.GROUP, export.BITS)
        if not name.endswith((".scales", ".biases")):
            plain[name] = value
    model = models.hybrid()
    model.load_weights(list(plain.items()))
    return model


def run(show: bool) -> None:
    """Prints the survival of every pair that ships."""
    target, draft, windowed = (load(str(f))[0] for f in (HYBRID, DRAFT, WINDOWED))
    head = shipped_head()
    for kind, chosen in (("code", code_prompts()), ("prose", prose_prompts())):
        texts = [(len(p), continued(target, p)) for p in chosen]
        other = [(len(p), continued(windowed, p)) for p in chosen]
        rows = {
            "hybrid, its head": [survival(head_hits(target, head, t), n + 1) for n, t in texts],
            "hybrid, draft": [survival(draft_hits(draft, t), n + 1) for n, t in texts],
            "windowed, draft": [survival(draft_hits(draft, t), n + 1) for n, t in other],
        }
        for name, counts in rows.items():
            print(f"{kind:6} {name:18} {_shares(counts)}", flush=True)
        if show:
            for n, tokens in texts[:6] + other[:2]:
                decode = tokenizer.load().decode
                print("-" * 80, decode(tokens[:n]), ">" * 80, decode(tokens[n:]), sep="\n")


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print some continuations")
    run(parser.parse_args().show)
