"""`speculate generate`: a text, and what it took."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, cast

from speculate.cli import parsing
from speculate.cli.figures import decode
from speculate.cli.models import PROPOSERS, load_named, strategy_for
from speculate.cli.sampling import add_sampling, sampling_of
from speculate.cli.telemetry.events import STANDARD_ERROR, event_log
from speculate.cli.telemetry.screen import screen
from speculate.loading import DEMO_MODELS, demo_prompt

if TYPE_CHECKING:
    from speculate.protocols import SpeculativeModel
    from speculate.text import DecoderOptions

SUMMARY: Final = "Generate text, with drafts that never change it."
EXAMPLE: Final = 'speculate generate --prompt "def fibonacci(n):" --proposer mtp lookup --stats'

KV_BITS: Final = (2, 3, 4, 5, 6, 8)
KV_GROUPS: Final = (32, 64, 128)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help=f"{parsing.a_model()} (default: {DEMO_MODELS[0]})")
    parsing.add_head(parser)
    add("--draft-model", metavar="MODEL", help="the model that drafts, named as --model")
    parsing.add_prompt(parser)
    parsing.add_max_tokens(parser, default=256)
    add(
        "--proposer",
        nargs="+",
        choices=PROPOSERS,
        metavar="NAME",
        help="who may draft, one or several: draft (the draft model), mtp (the model's own head), "
        "lookup (what followed earlier in the text), or off (default: all there are)",
    )
    parsing.add_depth(parser, default=None)
    add(
        "--chat-template",
        choices=("on", "off"),
        help="put the prompt into the tokenizer's chat template (default: if it has one)",
    )
    add("--stop", action="append", default=[], metavar="TEXT", help="end the text here; repeatable")
    _add_telemetry_arguments(parser)
    add_sampling(parser)
    _add_cache_arguments(parser)


def _add_telemetry_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--stats",
        action="store_true",
        help="show who drafts, what is accepted and how much faster it gets: in a terminal while "
        "the text comes, elsewhere in a table after it, on standard error",
    )
    add(
        "--events",
        metavar="FILE",
        help="append each round to FILE as a line of JSON; - writes to standard error, in place of "
        "the counters",
    )


def _add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt and cache, as in mlx-lm")
    add = group.add_argument
    add("--kv-bits", type=int, choices=KV_BITS, help="quantise the cache")
    add("--kv-group-size", type=int, choices=KV_GROUPS, default=64, help="(default: %(default)s)")
    add(
        "--quantized-kv-start",
        type=parsing.count,
        default=5000,
        metavar="N",
        help="tokens from which on the cache is quantised (default: %(default)s)",
    )
    add("--max-kv-size", type=parsing.positive, metavar="N", help="rows to keep a layer")
    add(
        "--prefill-step-size",
        type=parsing.positive,
        default=2048,
        metavar="N",
        help="prompt tokens to feed at once (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Stream a text to standard output, and end with a line of counters on standard error."""
    quiet = args.events == STANDARD_ERROR  # which is then of JSON alone
    sampling = sampling_of(args)
    prompt = demo_prompt() if args.prompt is None else parsing.read_prompt(args.prompt)
    with ExitStack() as stack:
        reports = [stack.enter_context(event_log(args.events))] if args.events else []
        draft = _draft(args)
        model, tokenizer = load_named(args.model, args.head)
        strategy = strategy_for(model, args.proposer, args.depth, draft)
        chat = cast(bool, tokenizer.has_chat_template)
        if args.chat_template is not None:
            chat = args.chat_template == "on"
        if args.prompt is None and not quiet:
            begins = prompt.strip().partition("\n")[0]
            print(f"no --prompt, so this goes on from a bundled one: {begins} ...", file=sys.stderr)
        shown = stack.enter_context(screen(stats=args.stats, quiet=quiet))
        found = decode(
            model,
            tokenizer,
            prompt,
            strategy,
            sampling=sampling,
            max_tokens=args.max_tokens,
            stop=args.stop,
            chat_template=chat,
            write=shown.write,
            reports=[*reports, shown.report],
            options=_options(args),
        )
    if not quiet:
        seed = f", seed {sampling.seed}" if sampling.temperature > 0 else ""
        print(found.line() + seed, file=sys.stderr)
    return 0


def _draft(args: argparse.Namespace) -> SpeculativeModel | None:
    """The model that drafts, if one is named; the bundled one drafts for the bundled target."""
    name = args.draft_model
    if name is None and args.model in (None, "hybrid") and "draft" in (args.proposer or ()):
        name = "draft"
    return None if name is None else load_named(name, head=False)[0]


def _options(args: argparse.Namespace) -> DecoderOptions:
    return {
        "kv_bits": args.kv_bits,
        "kv_group_size": args.kv_group_size,
        "quantized_kv_start": args.quantized_kv_start,
        "max_kv_size": args.max_kv_size,
        "prefill_step_size": args.prefill_step_size,
    }
