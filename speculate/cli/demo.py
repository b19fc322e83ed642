"""`speculate demo`: decodes one prompt in three ways and compares the texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from speculate.cli._arguments import add_depth, add_prompt, read_prompt
from speculate.cli._console import table_of
from speculate.cli._models import load_named, strategy_for
from speculate.decoding.stats import Stats
from speculate.text import stream_generate

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse

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
    from rich.console import Console

    prompt = read_prompt(args.prompt)
    model, tokenizer = load_named("hybrid")
    draft = load_named("draft")[0]
    runs: dict[str, tuple[Sequence[GenerationResponse], Stats]] = {}
    for proposer in PROPOSERS:
        for tokens in (WARM_UP_TOKENS, args.max_tokens):
            strategy, stats = strategy_for(model, [proposer], args.depth, draft), Stats()
            generation = stream_generate(
                model, tokenizer, prompt, strategy=strategy, max_tokens=tokens, observer=stats.count
            )
            runs[proposer] = list(generation), stats
    texts = [[response.token for response in responses] for responses, _ in runs.values()]
    same = all(text == texts[0] for text in texts)
    console = Console(highlight=False)
    console.print(prompt, markup=False, style="dim", soft_wrap=True, end="")
    text = "".join(response.text for response in runs["off"][0])
    console.print(text, markup=False, soft_wrap=True)
    console.print()
    table = table_of("proposer", "tokens", "target passes", "accepted", "tokens/pass", "tokens/s")
    for proposer, (responses, stats) in runs.items():
        accepted = f"{stats.accepted_tokens} of {stats.draft_tokens}" if stats.drafts else ""
        counts = str(len(responses)), str(stats.rounds), accepted
        each, rate = len(responses) / stats.rounds, responses[-1].generation_tps
        table.add_row(PROPOSERS[proposer], *counts, f"{each:.2f}", f"{rate:.1f}")
    console.print(table)
    console.print()
    verdict = "are identical." if same else "DIFFER: this is a bug, please report it."
    console.print(f"The three texts {verdict}")
    return 0 if same else 1


if __name__ == "__main__":
    from speculate.cli.main import main

    sys.exit(main(["demo", *sys.argv[1:]]))
