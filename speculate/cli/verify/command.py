"""`speculate verify`: every check of a model, and a report of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final, cast

from speculate.cli import parsing
from speculate.cli.models import load_named
from speculate.cli.progress import bars
from speculate.cli.writing import unwritable
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_prompt

if TYPE_CHECKING:
    from speculate.cli.progress import Bars
    from speculate.cli.verify.report import Report
    from speculate.testing.verify import Subject

SUMMARY: Final = "Check a model on this machine: is what is decoded with drafts what is promised?"
EXAMPLE: Final = "speculate verify --model hybrid --draft draft --tokens 16"

TOKENS: Final = 24
BUG: Final = 1
STANDARD_OUTPUT: Final = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    listed = f"{', '.join(DEMO_MODELS[:-1])} and {DEMO_MODELS[-1]}"
    add("--model", metavar="MODEL", help=f"{parsing.a_model()} (default: {listed}, in turn)")
    parsing.add_head(parser)
    add("--draft", "--draft-model", metavar="MODEL", help="a model that drafts, named as --model")
    add(
        "--tokens",
        type=parsing.positive,
        default=TOKENS,
        metavar="N",
        help="tokens of each text that is decoded (default: %(default)s)",
    )
    add(
        "--json",
        metavar="FILE",
        help="write the report to FILE as well, as JSON; - for standard "
        "output, and the text to standard error",
    )


def run(args: argparse.Namespace) -> int:
    """Check, and print a report, of whatever was checked when interrupted; 1 if there is a bug.

    Raises:
        KeyboardInterrupt: Once more, when the report is out.
    """
    from speculate.cli.verify.report import Report

    if args.model is None and args.head:
        raise OptionError("--head goes with --model")
    _check_writable(args.json)
    report = Report(tokens=args.tokens)
    try:
        with bars() as shown:
            # All at once: what cannot be loaded shows before anything was checked.
            loaded = [(*names, _subject(*names, args)) for names in _models(args)]
            for name, draft, subject in loaded:
                _verify(report, name, draft, subject, shown)
    except KeyboardInterrupt:
        report.interrupted = True
    _write(report, args.json)
    if report.outcome == "BUG":
        return BUG
    if report.interrupted:
        raise KeyboardInterrupt
    return 0


def _models(args: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Names of models, each with that of who drafts for it."""
    if args.model is not None:
        yield args.model, args.draft
        return
    for name in DEMO_MODELS:
        yield name, args.draft or ("draft" if name != "draft" else None)


def _verify(report: Report, name: str, draft: str | None, subject: Subject, shown: Bars) -> None:
    """Make all checks of one model, and note what they find."""
    from speculate.cli.verify.described import described
    from speculate.cli.verify.report import Checked
    from speculate.testing.verify import cases

    bar = shown.begin(f"{name}: rounding")
    verified = described(name, draft, subject)
    report.models.append(verified)
    todo = cases(subject)
    verified.planned = len(todo)
    for case in todo:
        bar.name(f"{name}: {case.check}, {case.name}", len(todo))
        verified.checks.append(Checked.of(case, case.run()))
        bar.advance()
    bar.name(f"{name}: {verified.outcome}")


def _subject(name: str, draft_name: str | None, args: argparse.Namespace) -> Subject:
    """Load a model, and who drafts for it.

    Raises:
        SpeculateError: There is no such model, or the two do not go together.
    """
    from speculate.proposers.draft_model import DraftModel
    from speculate.proposers.prompt_lookup import PromptLookup
    from speculate.testing.verify import Subject, by, by_head, by_model

    model, tokenizer = load_named(name, args.head)
    drafters = [] if model.head is None else [by_head()]
    if draft_name is not None:
        draft = load_named(draft_name, head=False)[0]
        DraftModel(draft).attach(model)
        drafters.append(by_model(draft))
    drafters.append(by(PromptLookup))
    ids = cast("list[int]", tokenizer.encode(demo_prompt()))
    return Subject(model, ids, drafters=drafters, tokens=args.tokens)


def _write(report: Report, place: str | None) -> None:
    """Print the report, and write it where it is asked for.

    Raises:
        OptionError: There it cannot be written. It was printed by then.
    """
    from speculate.cli.verify.report import as_json, as_text

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
            raise unwritable("the report", place, error) from error


def _check_writable(place: str | None) -> None:
    """Find out before minutes are spent, and change nothing: what is there may be all there is.

    Raises:
        OptionError: No report can be written there.
    """
    if place in (None, STANDARD_OUTPUT):
        return
    try:
        path = Path(place)
        with path.open("r+b") if path.exists() else NamedTemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        raise unwritable("the report", place, error) from error
