"""`speculate verify`: runs every check of a model on this machine, and prints a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final, cast

from speculate.cli._arguments import MODEL_HELP, Command, add_head, parse_positive
from speculate.cli._console import progress_bars, write_error
from speculate.cli._models import load_named
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_prompt

if TYPE_CHECKING:
    from speculate.cli._console import ProgressBars
    from speculate.cli._verify_report import VerificationReport
    from speculate.verify import VerificationTarget

TOKENS: Final = 24
"""Default number of tokens of each decoding run."""

BUG: Final = 1
"""Exit status if a check found a bug."""

STANDARD_OUTPUT: Final = "-"
"""Name of standard output on the command line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    listed = f"{', '.join(DEMO_MODELS[:-1])} and {DEMO_MODELS[-1]}"
    add("--model", metavar="MODEL", help=f"{MODEL_HELP} (default: {listed}, one after another)")
    add_head(parser)
    add("--draft", "--draft-model", metavar="MODEL", help="a draft model, named as --model")
    add(
        "--tokens",
        type=parse_positive,
        default=TOKENS,
        metavar="N",
        help="tokens of each decoding run (default: %(default)s)",
    )
    add(
        "--json",
        metavar="FILE",
        help="also write the report to FILE as JSON; - writes JSON to standard output, and the "
        "text to standard error",
    )


def run(args: argparse.Namespace) -> int:
    """Run the checks and print a report, also when interrupted; return 1 if there is a bug.

    Raises:
        KeyboardInterrupt: Raised again once the report is printed.
    """
    from speculate.cli._verify_report import VerificationReport

    if args.model is None and args.head:
        raise OptionError("--head requires --model")
    _check_writable(args.json)
    report = VerificationReport(tokens=args.tokens)
    try:
        with progress_bars() as shown:
            # Load all models first, so that a loading error shows before any check runs.
            loaded = [(*names, _load(*names, args)) for names in _model_names(args)]
            for name, draft, target in loaded:
                _verify(report, name, draft, target, shown)
    except KeyboardInterrupt:
        report.interrupted = True
    _write(report, args.json)
    if report.outcome == "BUG":
        return BUG
    if report.interrupted:
        raise KeyboardInterrupt
    return 0


def _model_names(args: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Names of the models, each with its draft model."""
    if args.model is not None:
        yield args.model, args.draft
        return
    for name in DEMO_MODELS:
        yield name, args.draft or ("draft" if name != "draft" else None)


def _verify(
    report: VerificationReport,
    name: str,
    draft: str | None,
    target: VerificationTarget,
    shown: ProgressBars,
) -> None:
    """Run all checks of one model, and add them to the report."""
    from speculate.cli._verify_report import CheckReport, describe_model
    from speculate.verify import cases

    bar = shown.add(f"{name}: rounding")
    verified = describe_model(name, draft, target)
    report.models.append(verified)
    todo = cases(target)
    verified.planned = len(todo)
    for case in todo:
        bar.rename(f"{name}: {case.check}, {case.name}", len(todo))
        verified.checks.append(CheckReport.of(case, case.run()))
        bar.advance()
    bar.rename(f"{name}: {verified.outcome}")


def _load(name: str, draft_name: str | None, args: argparse.Namespace) -> VerificationTarget:
    """Load a model and its draft model.

    Raises:
        SpeculateError: A model does not exist, or the two do not fit together.
    """
    from speculate.proposers.draft_model import DraftModel
    from speculate.proposers.prompt_lookup import PromptLookup
    from speculate.verify import (
        VerificationTarget,
        head_drafter,
        model_drafter,
        proposer_drafter,
    )

    model, tokenizer = load_named(name, args.head)
    drafters = [] if model.head is None else [head_drafter()]
    if draft_name is not None:
        draft = load_named(draft_name, head=False)[0]
        DraftModel(draft).attach(model)
        drafters.append(model_drafter(draft))
    drafters.append(proposer_drafter(PromptLookup))
    ids = cast("list[int]", tokenizer.encode(demo_prompt()))
    return VerificationTarget(model, ids, drafters=drafters, tokens=args.tokens)


def _write(report: VerificationReport, place: str | None) -> None:
    """Print the report, and write it to a file if requested.

    Raises:
        OptionError: The file cannot be written. The report has been printed.
    """
    from speculate.cli._verify_report import as_json, as_text

    text, data = "\n".join(as_text(report)), as_json(report)
    if place == STANDARD_OUTPUT:
        print(text, file=sys.stderr)
        print(data)
        return
    print(text)
    if place is not None:
        try:
            Path(place).write_text(f"{data}\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise write_error("the report", place, error) from error


def _check_writable(place: str | None) -> None:
    """Check before minutes are spent that the report can be written. Changes no existing file.

    Raises:
        OptionError: The report cannot be written there.
    """
    if place in (None, STANDARD_OUTPUT):
        return
    try:
        path = Path(place)
        with path.open("r+b") if path.exists() else NamedTemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        raise write_error("the report", place, error) from error


COMMAND: Final[Command] = Command(
    summary="Check that decoding with drafts is exact for a model on this machine.",
    example="speculate verify --model hybrid --draft draft --tokens 16",
    add_arguments=add_arguments,
    run=run,
)
