"""The parser of arguments, and the arguments that several subcommands share."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from typing import Final, Literal, NoReturn, final

import attrs
from typing_extensions import override

from speculate.errors import PromptError
from speculate.loading import DEMO_MODELS, demo_prompt
from speculate.sampling.options import MODES, Sampling
from speculate.strategies.fixed import MAX_DEPTH

STANDARD_STREAM: Final = "-"
"""Value of an option that names a file, for the standard stream."""

HEAD_HELP: Final = (
    "where the MTP head is, if not with the model: a folder, a safetensors file, a hub "
    "repository (--head owner/name-mtp), or hybrid, the bundled model that has one"
)

MODEL_HELP: Final = f"a folder, a hub repository, or a bundled model: {', '.join(DEMO_MODELS)}"
"""What an argument that names a model accepts."""

BITS: Final = (2, 3, 4, 5, 6, 8)
"""Supported bits of a quantised weight or cached value."""

GROUP_SIZES: Final = (32, 64, 128)
"""Supported numbers of values that share a scale, in mode affine."""

SAMPLING_OPTIONS: Final = (
    ("--temp", "T", 0.0, "temperature (default: %(default)g, greedy)"),
    ("--top-p", "P", 1.0, "total probability to keep"),
    ("--top-k", "K", 0, "number of tokens to keep"),
    ("--min-p", "P", 0.0, "least probability to keep, relative to the most likely token"),
    ("--min-tokens-to-keep", "N", 1, "tokens that --min-p always keeps"),
    ("--xtc-probability", "P", 0.0, "how often XTC is applied"),
    ("--xtc-threshold", "P", 0.1, "probability above which XTC removes tokens"),
)
"""Sampling options that have a number as default: flag, metavar, default and help."""


@final
class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def whole_number(condition: str, fits: Callable[[int], bool]) -> Callable[[str], int]:
    """Return the parser of a whole number that fits a condition, which its errors state."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must {condition}, got {value}")
        return value

    return parse


parse_depth: Final = whole_number(f"be from 0 to {MAX_DEPTH}", lambda n: 0 <= n <= MAX_DEPTH)
parse_limit: Final = whole_number("be at least 1, or -1 for no limit", lambda n: n >= 1 or n == -1)
parse_positive: Final = whole_number("be at least 1", lambda n: n >= 1)
parse_count: Final = whole_number("not be negative", lambda n: n >= 0)


def add_number(
    parser: argparse._ActionsContainer,
    *flags: str,
    default: int,
    help: str,
    parse: Callable[[str], int] = parse_positive,
) -> None:
    """Add an option that takes a whole number, with its default in the help."""
    shown = f"{help} (default: %(default)s)"
    parser.add_argument(*flags, type=parse, default=default, metavar="N", help=shown)


def add_models(parser: argparse.ArgumentParser, *draft: str, default: str = DEMO_MODELS[0]) -> None:
    """Add `--model`, `--head` and `--no-head`, and the flags of the draft model."""
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP} (default: {default})")
    add_head(parser)
    parser.add_argument(*draft, metavar="MODEL", help="a draft model, named as --model")


def add_head(parser: argparse.ArgumentParser) -> None:
    """Add `--head` and `--no-head`. Both set `head` to a location, `False` or `None`."""

    def parse(text: str) -> str | Literal[False]:
        return False if text == "none" else text  # A folder of that name is ./none.

    add = parser.add_mutually_exclusive_group().add_argument
    add("--head", metavar="HEAD", type=parse, help=f"{HEAD_HELP}; none is the same as --no-head")
    without = "load the model without its MTP head"
    add("--no-head", dest="head", action="store_const", const=False, help=without)


def add_prompt(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Add `--prompt`, and `--max-tokens` with its default."""
    prompt = (
        "the prompt; - reads standard input (default: the beginning of the function formatyear, "
        "which is not in the bundled models' training data)"
    )
    parser.add_argument("--prompt", "-p", metavar="TEXT", help=prompt)
    limit = "tokens to generate, -1 for no limit"
    add_number(parser, "--max-tokens", "-m", default=max_tokens, parse=parse_limit, help=limit)


def add_depth(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Add `--depth`. Without a default the depth adapts in every round."""
    shown = "adapted in every round" if default is None else "%(default)s"
    depth = f"tokens to draft in each round, 0 to {MAX_DEPTH} (default: {shown})"
    flags = ("--depth", "--num-draft-tokens")
    parser.add_argument(*flags, type=parse_depth, default=default, metavar="N", help=depth)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling options, named as in mlx-lm."""
    add = parser.add_argument_group("sampling, as in mlx-lm").add_argument
    for flag, metavar, default, meaning in SAMPLING_OPTIONS:
        add(flag, type=type(default), default=default, metavar=metavar, help=meaning)
    for name in ("repetition", "presence", "frequency"):
        add(f"--{name}-penalty", type=float, metavar="X", help=f"{name} penalty")
    seed = "random seed; in mode coupled it determines the text, regardless of the proposer"
    add("--seed", type=int, metavar="N", help=seed)
    verified = "how drafts are verified (default: %(default)s)"
    add("--mode", choices=MODES, default="coupled", help=verified)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the options of the prompt and of caches, named as in mlx-lm."""
    group = parser.add_argument_group("prompt and cache, as in mlx-lm")
    add = group.add_argument
    add("--kv-bits", type=int, choices=BITS, help="quantise the cache to this many bits")
    shared = "values that share a scale (default: %(default)s)"
    add("--kv-group-size", type=int, choices=GROUP_SIZES, default=64, help=shared)
    start = "length, in tokens, from which the cache is quantised"
    add_number(group, "--quantized-kv-start", default=5000, parse=parse_count, help=start)
    add("--max-kv-size", type=parse_positive, metavar="N", help="cache rows to keep for each layer")
    add_number(group, "--prefill-step-size", default=2048, help="prompt tokens in one forward")


def sampling_from(args: argparse.Namespace) -> Sampling:
    """The sampling options, with a random seed where one is needed and none is given."""
    fields = attrs.fields_dict(Sampling)
    given = {name: value for name, value in vars(args).items() if name in fields}
    if args.seed is None and args.temp > 0:
        given["seed"] = secrets.randbits(31)
    return Sampling(temperature=args.temp, **given)


def read_prompt(text: str | None) -> str:
    """The prompt that `--prompt` gives: `-` is standard input, `None` a bundled prompt."""
    if text is None:
        return demo_prompt()
    if text == STANDARD_STREAM and sys.stdin is None:
        raise PromptError("the prompt cannot be read from standard input: it is closed")
    try:
        found = sys.stdin.read() if text == STANDARD_STREAM else text
        found.encode()
    except UnicodeError as error:
        raise PromptError(f"the prompt is not UTF-8 text: {error}") from error
    except (OSError, ValueError) as error:
        raise PromptError(f"the prompt cannot be read from standard input: {error}") from error
    if not found:
        raise PromptError("the prompt is empty: give --prompt some text")
    return found
