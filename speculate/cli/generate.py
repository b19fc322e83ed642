"""`speculate generate`: streams a generated text, and reports how it was decoded."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import cast

from speculate.cli import _arguments as arguments
from speculate.cli._models import PROPOSERS, load_named, strategy_for
from speculate.decoding.stats import Stats
from speculate.protocols import Round
from speculate.text import stream_generate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    arguments.add_models(parser, "--draft-model")
    arguments.add_prompt(parser, max_tokens=256)
    proposers = (
        "one or several proposers: draft (the draft model), mtp (the model's own head), lookup "
        "(what followed the same tokens earlier), or off (default: all available)"
    )
    add("--proposer", nargs="+", choices=PROPOSERS, metavar="NAME", help=proposers)
    arguments.add_depth(parser, default=None)
    chat = "apply the tokenizer's chat template to the prompt (default: on if it has one)"
    add("--chat-template", choices=("on", "off"), help=chat)
    stop = "end the text before this string; may be repeated"
    add("--stop", action="append", default=[], metavar="TEXT", help=stop)
    stats = (
        "show proposers, acceptance and speedup: in a terminal live below the text, elsewhere in "
        "a table after it, on standard error"
    )
    add("--stats", action="store_true", help=stats)
    events = "append each round to FILE as a line of JSON; - writes to standard error instead of"
    add("--events", metavar="FILE", help=f"{events} the counters")
    arguments.add_sampling(parser)
    arguments.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Stream a text to standard output, and print a line of counters on standard error."""
    from speculate.cli._stats_view import event_log, text_view

    # With `--events -` standard error carries JSON only.
    quiet = args.events == arguments.STANDARD_STREAM
    sampling = arguments.sampling_from(args)
    prompt = arguments.read_prompt(args.prompt)
    stats = Stats(seed=sampling.seed if sampling.temperature > 0 else None)
    with ExitStack() as stack:
        log = stack.enter_context(event_log(args.events)) if args.events else None
        draft = args.draft_model
        # The bundled target has a bundled draft model.
        if draft is None and args.model in (None, "hybrid") and "draft" in (args.proposer or ()):
            draft = "draft"
        draft_model = None if draft is None else load_named(draft, head=False)[0]
        model, tokenizer = load_named(args.model, args.head)
        given, default = args.chat_template, cast(bool, tokenizer.has_chat_template)
        chat = default if given is None else given == "on"
        strategy = strategy_for(model, args.proposer, args.depth, draft_model)
        if args.prompt is None and not quiet:
            start = prompt.strip().partition("\n")[0]
            print(f"no --prompt given, using a bundled one: {start} ...", file=sys.stderr)
        view = stack.enter_context(text_view(stats=args.stats, quiet=quiet))

        def observe(round: Round, /) -> None:
            stats.count(round)
            if log is not None:
                log(round, stats)
            view.add_round(round, stats)

        for response in stream_generate(
            model,
            tokenizer,
            prompt,
            strategy=strategy,
            sampling=sampling,
            max_tokens=args.max_tokens,
            stop=args.stop,
            chat_template=chat,
            kv_bits=args.kv_bits,
            kv_group_size=args.kv_group_size,
            quantized_kv_start=args.quantized_kv_start,
            max_kv_size=args.max_kv_size,
            prefill_step_size=args.prefill_step_size,
            observer=observe,
        ):
            view.write(response.text)
    if not quiet:
        accepted = f"{stats.accepted_tokens} of {stats.draft_tokens} ({stats.acceptance_rate:.0%})"
        length = f"mean acceptance length {stats.mean_acceptance_length:.2f}"
        drafts = f"drafts accepted {accepted}, {length}" if stats.drafts else "nothing drafted"
        seed = "" if stats.seed is None else f", seed {stats.seed}"
        rate = f"{response.generation_tps:.1f} tokens/s{seed}"
        counts = f"{response.generation_tokens} tokens, {stats.rounds} target passes"
        print(f"{counts}, {drafts}, {rate}", file=sys.stderr)
    return 0
