"""`speculate bench`: what drafts cost and bring, measured and drawn."""

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

from speculate.cli import parsing
from speculate.cli.machine import device, versions
from speculate.cli.models import load_named
from speculate.cli.printing import finite
from speculate.cli.progress import stages
from speculate.cli.writing import unwritable
from speculate.errors import CheckpointError
from speculate.loading import DEMO_MODELS, demo_folder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from speculate.cli.bench.results import Results

SUMMARY: Final = "Measure what forwards and drafts take here, and what each strategy makes of it."
EXAMPLE: Final = "speculate bench --draft-model draft --tokens 64 --output speculate-bench"

WORKLOADS: Final = ("code", "prose")
PROMPTS: Final = 2
"""Bundled prompts of each workload."""

DATA: Final = "bench.json"
PICTURE: Final = "bench.png"

NO_MATPLOTLIB: Final = (
    f"There is no matplotlib here, so {PICTURE} is not drawn: pip install 'mlx-speculate[plots]'"
)
ON_A_CPU: Final = (
    "This ran on a CPU. The BLAS in MLX's wheel for Linux takes time for every row of a forward, "
    "so drafts do not pay with it as they do on a GPU: look at v(T)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help=f"{parsing.a_model()} (default: {DEMO_MODELS[0]})")
    parsing.add_head(parser)
    add("--draft-model", "--draft", metavar="MODEL", help="a model that drafts, named as --model")
    add(
        "--tokens",
        type=parsing.positive,
        default=128,
        metavar="N",
        help="tokens of each text (default: %(default)s). 64 texts are decoded with a head or a "
        "draft model, 88 with both; how long that takes is said once a few tokens were decoded",
    )
    add(
        "--output",
        "-o",
        type=Path,
        default=Path("speculate-bench"),
        metavar="DIR",
        help=f"where to write {DATA} and {PICTURE} (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write; what was written there before is replaced."""
    from speculate.cli.bench.plots import draw
    from speculate.cli.bench.table import show

    draws = find_spec("matplotlib") is not None
    _prepare(args.output)
    if not draws:
        print(NO_MATPLOTLIB, file=sys.stderr)
    results = _measure(args)
    show(results)
    if mx.default_device().type == mx.cpu:
        print(ON_A_CPU)
    text = json.dumps(finite(attrs.asdict(results)), indent=1, allow_nan=False)
    data, picture = args.output / DATA, args.output / PICTURE
    try:
        data.write_text(f"{text}\n", encoding="utf-8")
        if draws:
            draw(results, picture)
    except OSError as error:
        raise unwritable("results", args.output, error) from error
    print(f"written: {data}" + (f", {picture}" if draws else ""))
    return 0


def _measure(args: argparse.Namespace) -> Results:
    from speculate.cli.bench import results as numbers
    from speculate.cli.bench.estimate import Estimate
    from speculate.cli.bench.forwards import REPEATS, time_forwards
    from speculate.cli.bench.runs import run_all, ways_of

    draft = None if args.draft_model is None else load_named(args.draft_model, head=False)[0]
    model, tokenizer = load_named(args.model, args.head)
    workloads, ways = _workloads(tokenizer), ways_of(model, draft)
    texts = 2 * sum(len(prompts) for prompts in workloads.values())
    estimate = Estimate(ways, texts, args.tokens)
    with stages(estimate.left) as stage:
        context = max(workloads["code"], key=len)
        with stage("forwards", 1 + REPEATS) as done:
            forwards = time_forwards(model, context, done)
        stops = cast("set[int]", tokenizer.eos_token_ids)
        runs = run_all(model, ways, workloads, args.tokens, stops, stage, estimate)
    return numbers.Results(
        model=args.model or DEMO_MODELS[0],
        draft_model=args.draft_model,
        machine={"device": device(), **versions()},
        tokens=args.tokens,
        forward=numbers.relative(forwards, len(context)),
        survival=numbers.survival(runs),
        choices=numbers.choices(runs),
        workloads=numbers.outcomes(runs),
        same_text=numbers.same_text(runs),
        disturbance=numbers.disturbance(runs),
    )


def _workloads(tokenizer: TokenizerWrapper) -> Mapping[str, Sequence[Sequence[int]]]:
    """Prompts by kind, as ids."""
    folder = demo_folder(DEMO_MODELS[0]).parent / "prompts"
    found: dict[str, list[list[int]]] = {}
    for kind in WORKLOADS:
        paths = sorted(folder.glob(f"{kind}_*.txt"))[:PROMPTS]
        if not paths:
            raise CheckpointError(f"{folder}: the bundled prompts are missing; reinstall it")
        texts = [path.read_text(encoding="utf-8") for path in paths]
        found[kind] = [cast("list[int]", tokenizer.encode(text)) for text in texts]
    return found


def _prepare(folder: Path) -> None:
    """Make the folder, and see that it can be written to, before minutes are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / DATA).open("a"):
            pass
    except (OSError, ValueError) as error:
        raise unwritable("results", folder, error) from error
