"""What a rejection costs a Gated DeltaNet hybrid: five ways of taking its state back.

    python -m benchmarks.rewind --output rewind.json

A round feeds a block and keeps part of it; every round rejects, which is the worst case. What
it takes longer than the forward of a block of which nothing is recorded is given as a share of
the forward of one token.

On a CPU it is the processor's time that counts, with one thread for products: what else runs on
the machine then hardly shows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import mlx.core as mx
from mlx_lm.models import qwen3_5

from benchmarks import regime
from benchmarks.rewind_ways import VOCAB, WAYS, Shape, Way, adapted
from speculate import SpeculativeModel, speculation
from speculate.protocols import Rollbackable

CUTS: Final = ((4, 1), (4, 3), (8, 4))
"""Tokens of a block, and how many of them stay."""
ROUNDS: Final = 10
PROMPT: Final = 32
SHAPES: Final = (Shape(512, 4, 8, 64), Shape(1024, 8, 16, 64), Shape(1024, 8, 16, 128))


def clock() -> float:
    """Seconds: the processor's, unless a GPU does the work."""
    return time.process_time() if mx.default_device() == mx.cpu else time.perf_counter()


def one_thread() -> None:
    """Let OpenBLAS wait for nobody: a thread that waits takes time as well."""
    library = regime.loaded()
    if library is not None:
        ctypes.CDLL(str(library)).openblas_set_num_threads(1)


def feed(model: SpeculativeModel, caches: Sequence[Rollbackable], tokens: int) -> mx.array:
    ids = mx.arange(tokens, dtype=mx.uint32)[None] * 37 % VOCAB
    logits = model.forward(ids, caches).logits
    mx.eval(logits, [cache.arrays() for cache in caches])
    return logits[0]


def forwards(stock: qwen3_5.Model, tokens: int) -> Iterator[float]:
    """Seconds of one forward after another, of which nothing is recorded."""
    model = adapted(stock, "kernel")
    caches = model.make_cache()
    feed(model, caches, PROMPT)
    while True:
        start = clock()
        feed(model, caches, tokens)
        yield clock() - start


def rounds(stock: qwen3_5.Model, way: Way, tokens: int, stay: int) -> Iterator[float]:
    """Seconds of one round after another, of which `stay` tokens are kept."""
    adapt, after_rejection = way
    model = adapt(stock)
    caches = model.make_cache()
    feed(model, caches, PROMPT)
    with speculation(caches) as window:
        while True:
            start = clock()
            feed(model, caches, tokens)
            window.keep(stay)
            after_rejection(caches)
            yield clock() - start


def measure(stock: qwen3_5.Model, tokens: int, stay: int, repeats: int) -> dict[str, list[float]]:
    """Shares of the forward of one token, by way, one a repeat.

    A repeat is the median of many rounds. All ways take turns, round by round, and every other
    time in reverse order, so that a machine that slows down is unfair to nobody.
    """
    tasks = {
        "step": forwards(stock, 1),
        "block": forwards(stock, tokens),
        **{name: rounds(stock, way, tokens, stay) for name, way in WAYS.items()},
    }
    shares: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(repeats + 1):
        seconds: dict[str, list[float]] = {name: [] for name in tasks}
        for turn in range(ROUNDS):
            for name in list(tasks)[:: -1 if turn % 2 else 1]:
                seconds[name].append(next(tasks[name]))
        if repeat:  # the first was to warm up
            step, block, *ways = (statistics.median(values) for values in seconds.values())
            for values, way in zip(shares.values(), ways, strict=True):
                values.append((way - block) / step)
    return shares


def run(repeats: int) -> dict[str, object]:
    rows = []
    for shape in SHAPES:
        stock = shape.build()
        for tokens, stay in CUTS:
            found = measure(stock, tokens, stay, repeats)
            ways = {
                name: {"median": statistics.median(v), "low": min(v), "high": max(v)}
                for name, v in found.items()
            }
            rows.append({**attrs.asdict(shape), "tokens": tokens, "stay": stay, "ways": ways})
            print(line(rows[-1]), flush=True)
    return {"environment": regime.environment(), "repeats": repeats, "rows": rows}


def heading() -> str:
    names = ["hidden", "heads x width", "block", "stays", *WAYS]
    return "| " + " | ".join(names) + " |\n|" + "---|" * len(names)


def line(row: Mapping[str, Any]) -> str:
    """A row of the table: medians, and in brackets the lowest and highest repeat."""
    heads = f"{row['value_heads']} x {row['width']}"
    shares = [
        f"{way['median']:.2f} ({way['low']:.2f} to {way['high']:.2f})"
        for way in row["ways"].values()
    ]
    cells = [row["hidden"], heads, row["tokens"], row["stay"], *shares]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    regime.enter()
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("rewind.json"))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(heading())
    found = run(options.repeats)
    options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
