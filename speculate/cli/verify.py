"""`speculate verify`: runs every check of a model on this machine, and prints a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, cast

from speculate.cli._arguments import STANDARD_STREAM, add_models, add_number
from speculate.cli._console import progress_bars, writing
from speculate.cli._models import load_named
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_prompt

if TYPE_CHECKING:
    from speculate.verify import VerificationTarget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    listed = f"{', '.join(DEMO_MODELS[:-1])} and {DEMO_MODELS[-1]}"
    add_models(parser, "--draft", "--draft-model", default=f"{listed}, one after another")
    add_number(parser, "--tokens", default=24, help="tokens of each decoding run")
    written = (
        "also write the report to FILE as JSON; - writes JSON to standard output, and the text to "
        "standard error"
    )
    parser.add_argument("--json", metavar="FILE", help=written)


def run(args: argparse.Namespace) -> int:
    """Run the checks and print a report, also when interrupted; return 1 if there is a bug.

    Raises:
        KeyboardInterrupt: Raised again once the report is printed.
    """
    from speculate.cli._verify_report import VerificationReport, check_model, write

    if args.model is None and args.head:
        raise OptionError("--head requires --model")
    if args.json not in (None, STANDARD_STREAM):
        # Fails before minutes are spent, and changes no existing file.
        with writing("the report", args.json):
            path = Path(args.json)
            with path.open("r+b") if path.exists() else NamedTemporaryFile(dir=path.parent):
                pass
    # Names of the models, each with its draft model.
    models = [(args.model, args.draft)]
    if args.model is None:
        drafts = ((name, None if name == "draft" else "draft") for name in DEMO_MODELS)
        models = [(name, args.draft or draft) for name, draft in drafts]
    report = VerificationReport(tokens=args.tokens)
    try:
        with progress_bars() as shown:
            # Load all models first, so that a loading error shows before any check runs.
            loaded = [(*names, _load(*names, args)) for names in models]
            for name, draft, target in loaded:
                check_model(report, name, draft, target, shown)
    except KeyboardInterrupt:
        report.interrupted = True
    write(report, args.json)
    if report.outcome == "BUG":
        return 1
    if report.interrupted:
        raise KeyboardInterrupt
    return 0


def _load(name: str, draft_name: str | None, args: argparse.Namespace) -> VerificationTarget:
    """Load a model and its draft model, and check that the two fit together."""
    from speculate import verify
    from speculate.proposers.draft_model import DraftModel
    from speculate.proposers.prompt_lookup import PromptLookup

    model, tokenizer = load_named(name, args.head)
    drafters = [] if model.head is None else [verify.head_drafter()]
    if draft_name is not None:
        draft = load_named(draft_name, head=False)[0]
        DraftModel(draft).attach(model)
        drafters.append(verify.model_drafter(draft))
    drafters.append(verify.proposer_drafter(PromptLookup))
    ids = cast("list[int]", tokenizer.encode(demo_prompt()))
    return verify.VerificationTarget(model, ids, drafters=drafters, tokens=args.tokens)
