"""`speculate demo`: decodes one prompt in three ways and compares the texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Final

from speculate.cli._arguments import Command, add_depth, add_prompt, read_prompt
from speculate.cli._console import table_of
from speculate.cli._models import Completion, complete, load_named, strategy_for
from speculate.decoding.stats import Stats
from speculate.text import stream_generate

PROPOSERS: Final = {
    "off": "none: plain decoding",
    "mtp": "the MTP head",
    "draft": "the draft model",
}
"""Names of the proposers, and what the table calls them."""

WARM_UP_TOKENS: Final = 8
"""Tokens that each proposer decodes once without being measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_prompt(parser, max_tokens=128)
    add_depth(parser, default=3)


def run(args: argparse.Namespace) -> int:
    """Print the text and a table; return 1 if the texts differ."""
    prompt = read_prompt(args.prompt)
    model, tokenizer = load_named("hybrid")
    draft = load_named("draft")[0]
    runs: dict[str, Completion] = {}
    for proposer in PROPOSERS:
        for tokens in (WARM_UP_TOKENS, args.max_tokens):
            stats = Stats()
            responses = stream_generate(
                model,
                tokenizer,
                prompt,
                strategy=strategy_for(model, [proposer], args.depth, draft),
                max_tokens=tokens,
                observer=stats.count,
            )
            runs[proposer] = complete(responses, stats)
    same = all(found.ids == runs["off"].ids for found in runs.values())
    _show(prompt, runs, same)
    return 0 if same else 1


def _show(prompt: str, runs: Mapping[str, Completion], same: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(prompt, markup=False, style="dim", soft_wrap=True, end="")
    console.print(runs["off"].text, markup=False, soft_wrap=True)
    console.print()
    figures = ("tokens", "target passes", "accepted", "tokens/pass", "tokens/s")
    table = table_of("proposer", *figures)
    for proposer, found in runs.items():
        passes = found.stats.rounds
        table.add_row(
            PROPOSERS[proposer],
            str(len(found.ids)),
            str(passes),
            found.accepted if found.stats.drafts else "",
            f"{len(found.ids) / passes:.2f}",
            f"{found.tokens_per_second:.1f}",
        )
    console.print(table)
    console.print()
    verdict = "are identical." if same else "DIFFER: this is a bug, please report it."
    console.print(f"The three texts {verdict}")


COMMAND: Final[Command] = Command(
    summary="Decode a prompt plain, with the MTP head, and with a draft model.",
    example="speculate demo --max-tokens 64 --depth 4",
    add_arguments=add_arguments,
    run=run,
)

if __name__ == "__main__":
    from speculate.cli.main import main

    sys.exit(main(["demo", *sys.argv[1:]]))
