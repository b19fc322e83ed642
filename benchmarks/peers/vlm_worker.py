"""Decodes with mlx-vlm. Runs in mlx-vlm's own environment, and imports nothing of ours.

    python vlm_worker.py MODEL DRAFTER

Each line that it reads asks for a text, and each line that it prints is one:
`{"prompt": [ids], "tokens": n, "block": n or null, "whole": bool}` gives
`{"ids": [ids], "rate": tokens a second, "rounds": n}`.
"""

import json
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.generate.ar import generate_step
from mlx_vlm.speculative.drafters import load_drafter
from mlx_vlm.utils import load_model


def now() -> float:
    """Seconds, by the same clock as in `benchmarks.clock`."""
    alone = os.environ.get("OPENBLAS_NUM_THREADS") == "1"
    return time.process_time() if alone else time.perf_counter()


def decode(model: Any, drafter: Any, asked: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if asked["block"]:
        options = {"draft_model": drafter, "draft_kind": "mtp", "draft_block_size": asked["block"]}
    if asked["whole"]:
        options["prefill_step_size"] = None
    prompt = mx.array([asked["prompt"]], dtype=mx.int32)
    many = asked["tokens"] + 64
    steps = generate_step(prompt, model, None, None, max_tokens=many, temperature=0.0, **options)
    ids, times = [], []
    for token, _ in islice(steps, asked["tokens"]):
        ids.append(int(token))
        times.append(now())
    # The first round is left out: taking in the prompt is a part of it.
    lengths = drafter.accept_lens if asked["block"] else [0] * len(ids)
    first = 1 + lengths[0]
    steps.close()
    rate = (len(ids) - 1 - first) / (times[-1] - times[first])
    return {"ids": ids, "rate": rate, "rounds": len(lengths)}


def main() -> None:
    model, (drafter, _) = load_model(Path(sys.argv[1])), load_drafter(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(decode(model, drafter, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
