"""`speculate generate`: a text, and what it took."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, cast

from speculate.cli import parsing
from speculate.cli.figures import decode
from speculate.cli.models import load_named, strategy_for
from speculate.cli.sampling import add_sampling, sampling_of
from speculate.loading import demo_prompt

if TYPE_CHECKING:
    from speculate.text import DecoderOptions

SUMMARY: Final = "Generate text, with drafts that never change it."
EXAMPLE: Final = 'speculate generate --prompt "def fibonacci(n):" --proposer mtp --depth 3'

KV_BITS: Final = (2, 3, 4, 5, 6, 8)
KV_GROUPS: Final = (32, 64, 128)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help=f"{parsing.a_model()} (default: hybrid)")
    add("--head", metavar="PATH", help="where the MTP head is, if the model's folder has none")
    add("--draft-model", metavar="MODEL", help="the model that drafts: likewise")
    parsing.add_prompt(parser)
    parsing.add_max_tokens(parser, default=256)
    add(
        "--proposer",
        choices=("mtp", "draft", "lookup", "off"),
        help="who drafts: the model's own head, the draft model, what followed earlier in the "
        "text, or nobody (default: the draft model if one is given, else the head if there is one)",
    )
    parsing.add_depth(parser)
    add(
        "--chat-template",
        choices=("on", "off"),
        help="put the prompt into the tokenizer's chat template (default: if it has one)",
    )
    add("--stop", action="append", default=[], metavar="TEXT", help="end the text here; repeatable")
    add_sampling(parser)
    _add_cache_arguments(parser)


def _add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt and cache, as in mlx-lm")
    add = group.add_argument
    add("--kv-bits", type=int, choices=KV_BITS, help="quantise the cache")
    add("--kv-group-size", type=int, choices=KV_GROUPS, default=64, help="(default: 64)")
    add(
        "--quantized-kv-start",
        type=parsing.count,
        default=5000,
        metavar="N",
        help="tokens from which on the cache is quantised (default: 5000)",
    )
    add("--max-kv-size", type=parsing.positive, metavar="N", help="rows to keep a layer")
    add(
        "--prefill-step-size",
        type=parsing.positive,
        default=2048,
        metavar="N",
        help="prompt tokens to feed at once (default: 2048)",
    )


def run(args: argparse.Namespace) -> int:
    """Stream a text to standard output, and end with a line of counters."""
    sampling = sampling_of(args)
    prompt = demo_prompt() if args.prompt is None else parsing.read_prompt(args.prompt)
    draft_name = args.draft_model
    if draft_name is None and args.model in (None, "hybrid") and args.proposer == "draft":
        draft_name = "draft"
    draft = None if draft_name is None else load_named(draft_name, head=False)[0]
    model, tokenizer = load_named(args.model, args.head)
    chat = cast(bool, tokenizer.has_chat_template)
    if args.chat_template is not None:
        chat = args.chat_template == "on"
    found = decode(
        model,
        tokenizer,
        prompt,
        strategy_for(model, args.proposer, args.depth, draft),
        sampling=sampling,
        max_tokens=args.max_tokens,
        stop=args.stop,
        chat_template=chat,
        write=_write,
        options=_options(args),
    )
    if not found.text.endswith("\n"):
        print()
    print(found.line() + (f", seed {sampling.seed}" if sampling.temperature > 0 else ""))
    return 0


def _options(args: argparse.Namespace) -> DecoderOptions:
    return {
        "kv_bits": args.kv_bits,
        "kv_group_size": args.kv_group_size,
        "quantized_kv_start": args.quantized_kv_start,
        "max_kv_size": args.max_kv_size,
        "prefill_step_size": args.prefill_step_size,
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
