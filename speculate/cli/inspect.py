"""`speculate inspect`: what a checkpoint holds, and what can be done with it."""

from __future__ import annotations

import argparse
import json
from typing import Final

from speculate.cli import parsing
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS

SUMMARY: Final = "Say what a model and its head are like, without loading them."
EXAMPLE: Final = "speculate inspect hybrid --check"

FAILED: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "path",
        nargs="?",
        metavar="PATH",
        help="a model's folder, a head's folder or file, a hub repository, or a bundled model "
        f"(default: {DEMO_MODELS[0]})",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add(
        "--check",
        action="store_true",
        help="load the model and its head, and see how often the first draft would be accepted; "
        "exit status 1 for less than 5 %%",
    )
    parsing.add_head(parser)
    add(
        "--norms",
        choices=("gains", "raw"),
        help="for --check: how the head's norms are stored, instead of finding it out",
    )


def run(args: argparse.Namespace) -> int:
    """Print a report; 1 if the head does not draft for the model."""
    import attrs

    from speculate.cli.check import check_head
    from speculate.cli.printing import finite
    from speculate.cli.report import inspect
    from speculate.cli.sources import find
    from speculate.cli.table import show

    if args.check and args.head is False:
        raise OptionError("--check lets the head guess: leave out --no-head, or --check")
    head = find(args.head, head_only=True) if args.head else args.head
    report = inspect(find(args.path), head)
    check = check_head(args.path, args.head, args.norms) if args.check else None
    if args.json:
        found = attrs.asdict(report)
        if check is not None:
            found["check"] = {**attrs.asdict(check), "passed": check.passed}
        print(json.dumps(finite(found), indent=2))
    else:
        show(report, check)
    return 0 if check is None or check.passed else FAILED
