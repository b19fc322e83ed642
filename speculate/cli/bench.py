"""`speculate bench`: measures the costs and the speedup of drafts on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs
import mlx.core as mx

from speculate.cli._arguments import MODEL_HELP, Command, add_head, parse_positive
from speculate.cli._console import device, json_safe, progress_stages, versions, write_error
from speculate.cli._models import load_named
from speculate.errors import CheckpointError
from speculate.loading import DEMO_MODELS, demo_folder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from speculate.cli._bench_report import Results

WORKLOADS: Final = ("code", "prose")
"""Kinds of bundled prompts."""

PROMPTS: Final = 2
"""Bundled prompts of each kind."""

DATA_FILE: Final = "bench.json"
"""File with the numbers, in the output folder."""

PICTURE_FILE: Final = "bench.png"
"""File with the picture, in the output folder."""

NO_MATPLOTLIB: Final = (
    f"matplotlib is not installed, so {PICTURE_FILE} is not drawn: "
    "pip install 'mlx-speculate[plots]'"
)
"""Printed on standard error."""

ON_A_CPU: Final = (
    "Measured on a CPU. The BLAS in MLX's wheel for Linux spends time on every row of a forward, "
    "so drafts gain less than on a GPU: see v(T)."
)
"""Printed after the results."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help=f"{MODEL_HELP} (default: {DEMO_MODELS[0]})")
    add_head(parser)
    add("--draft-model", "--draft", metavar="MODEL", help="a draft model, named as --model")
    add(
        "--tokens",
        type=parse_positive,
        default=128,
        metavar="N",
        help="tokens of each run (default: %(default)s). There are 64 runs with a head or a draft "
        "model, and 88 with both; the time that they take is estimated after the warm-up",
    )
    add(
        "--output",
        "-o",
        type=Path,
        default=Path("speculate-bench"),
        metavar="DIR",
        help=f"the folder for {DATA_FILE} and {PICTURE_FILE} (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results, replacing earlier ones."""
    from speculate.cli._bench_report import draw, show

    draws = find_spec("matplotlib") is not None
    _prepare(args.output)
    if not draws:
        print(NO_MATPLOTLIB, file=sys.stderr)
    results = _measure(args)
    show(results)
    if mx.default_device().type == mx.cpu:
        print(ON_A_CPU)
    text = json.dumps(json_safe(attrs.asdict(results)), indent=1, allow_nan=False)
    data, picture = args.output / DATA_FILE, args.output / PICTURE_FILE
    try:
        data.write_text(f"{text}\n", encoding="utf-8")
        if draws:
            draw(results, picture)
    except OSError as error:
        raise write_error("results", args.output, error) from error
    print(f"written: {data}" + (f", {picture}" if draws else ""))
    return 0


def _measure(args: argparse.Namespace) -> Results:
    from speculate.cli import _bench_report as report
    from speculate.cli._bench_runs import REPEATS, Estimate, run_all, settings_for, time_forwards

    draft = None if args.draft_model is None else load_named(args.draft_model, head=False)[0]
    model, tokenizer = load_named(args.model, args.head)
    workloads, settings = _workloads(tokenizer), settings_for(model, draft)
    runs_each = 2 * sum(len(prompts) for prompts in workloads.values())
    estimate = Estimate(settings, runs_each, args.tokens)
    with progress_stages(estimate.left) as stage:
        context = max(workloads["code"], key=len)
        with stage("forwards", 1 + REPEATS) as done:
            forwards = time_forwards(model, context, done)
        stops = cast("set[int]", tokenizer.eos_token_ids)
        runs = run_all(model, settings, workloads, args.tokens, stops, stage, estimate)
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


def _workloads(tokenizer: TokenizerWrapper) -> Mapping[str, Sequence[Sequence[int]]]:
    """The bundled prompts by kind, as ids."""
    folder = demo_folder(DEMO_MODELS[0]).parent / "prompts"
    found: dict[str, list[list[int]]] = {}
    for kind in WORKLOADS:
        paths = sorted(folder.glob(f"{kind}_*.txt"))[:PROMPTS]
        if not paths:
            raise CheckpointError(
                f"{folder}: the bundled prompts are missing; reinstall mlx-speculate"
            )
        texts = [path.read_text(encoding="utf-8") for path in paths]
        found[kind] = [cast("list[int]", tokenizer.encode(text)) for text in texts]
    return found


def _prepare(folder: Path) -> None:
    """Make the output folder and check that it is writable, before minutes are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / DATA_FILE).open("a"):
            pass
    except (OSError, ValueError) as error:
        raise write_error("results", folder, error) from error


COMMAND: Final[Command] = Command(
    summary="Measure forwards and drafts on this machine, and the speedup of each strategy.",
    example="speculate bench --draft-model draft --tokens 64 --output speculate-bench",
    add_arguments=add_arguments,
    run=run,
)
