"""`speculate bench`: measures the costs and the speedup of drafts on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, cast

import attrs
import mlx.core as mx

from speculate.cli import _bench_report as report
from speculate.cli._arguments import add_models, parse_positive
from speculate.cli._bench_runs import REPEATS, Estimate, run_all, settings_for, time_forwards
from speculate.cli._console import as_json, device, progress_bars, versions, writing
from speculate.cli._models import load_named
from speculate.loading import DEMO_MODELS, demo_prompts

WORKLOADS: Final = ("code", "prose")
PROMPTS: Final = 2
"""Kinds of bundled prompts, and how many of each are decoded."""

DATA_FILE: Final = "bench.json"
PICTURE_FILE: Final = "bench.png"
"""Files in the output folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add_models(parser, "--draft-model", "--draft")
    tokens = (
        "tokens of each run (default: %(default)s). There are 64 runs with a head or a draft "
        "model, and 88 with both; the time that they take is estimated after the warm-up"
    )
    add("--tokens", type=parse_positive, default=128, metavar="N", help=tokens)
    folder = f"the folder for {DATA_FILE} and {PICTURE_FILE} (default: %(default)s)"
    default = Path("speculate-bench")
    add("--output", "-o", type=Path, default=default, metavar="DIR", help=folder)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results, replacing earlier ones."""
    draws = find_spec("matplotlib") is not None
    data, picture = args.output / DATA_FILE, args.output / PICTURE_FILE
    # Fails before minutes are spent.
    with writing("results", args.output):
        args.output.mkdir(parents=True, exist_ok=True)
        data.open("a").close()
    if not draws:
        reason = f"matplotlib is not installed, so {PICTURE_FILE} is not drawn"
        print(f"{reason}: pip install 'mlx-speculate[plots]'", file=sys.stderr)
    results = _measure(args)
    report.show(results)
    if mx.default_device().type == mx.cpu:
        print(
            "Measured on a CPU. The BLAS in MLX's wheel for Linux spends time on every row of a "
            "forward, so drafts gain less than on a GPU: see v(T)."
        )
    with writing("results", args.output):
        data.write_text(f"{as_json(attrs.asdict(results), indent=1)}\n", encoding="utf-8")
        if draws:
            report.draw(results, picture)
    print(f"written: {data}" + (f", {picture}" if draws else ""))
    return 0


def _measure(args: argparse.Namespace) -> report.Results:
    draft = None if args.draft_model is None else load_named(args.draft_model, head=False)[0]
    model, tokenizer = load_named(args.model, args.head)
    texts = {kind: demo_prompts(kind)[:PROMPTS] for kind in WORKLOADS}
    encode = cast("Callable[[str], list[int]]", tokenizer.encode)
    workloads = {kind: [encode(text) for text in found] for kind, found in texts.items()}
    settings = settings_for(model, draft)
    runs_each = 2 * sum(len(prompts) for prompts in workloads.values())
    estimate = Estimate(settings, runs_each, args.tokens)
    with progress_bars(estimate.left) as shown:
        context = max(workloads["code"], key=len)
        with shown.stage("forwards", 1 + REPEATS) as done:
            forwards = time_forwards(model, context, done)
        stops = cast("set[int]", tokenizer.eos_token_ids)
        runs = run_all(model, settings, workloads, args.tokens, stops, shown.stage, estimate)
    return report.Results(
        model=args.model or DEMO_MODELS[0],
        draft_model=args.draft_model,
        machine={"device": device(), **versions()},
        tokens=args.tokens,
        forward=report.relative_times(forwards, len(context)),
        survival=report.survival(runs),
        choices=report.round_times(runs),
        workloads=report.results_by_workload(runs),
        same_text=report.same_text(runs),
        disturbance=report.disturbance(runs),
    )
