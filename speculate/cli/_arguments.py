"""What subcommands are made of, and the arguments that several of them share."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from typing import Final, Literal, NoReturn, final

import attrs
from typing_extensions import override

from speculate.errors import PromptError
from speculate.loading import DEMO_MODELS
from speculate.sampling.options import MODES, Sampling
from speculate.strategies.fixed import MAX_DEPTH

NO_HEAD: Final = "none"
"""Value of `--head` for no head; a folder of that name is ./none."""

HEAD_HELP: Final = (
    "where the MTP head is, if not with the model: a folder, a safetensors file, a hub "
    "repository (--head owner/name-mtp), or hybrid, the bundled model that has one"
)

MODEL_HELP: Final = f"a folder, a hub repository, or a bundled model: {', '.join(DEMO_MODELS)}"
"""What an argument that names a model accepts."""


@final
@attrs.frozen
class Command:
    """A subcommand.

    Attributes:
        summary: What it does, in one sentence.
        example: A command line that works as written.
        add_arguments: Adds its arguments to a parser.
        run: Runs it and returns the exit status.
    """

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@final
class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parse_depth(text: str) -> int:
    """A draft depth in tokens."""
    value = _parse_int(text)
    if not 0 <= value <= MAX_DEPTH:
        raise argparse.ArgumentTypeError(f"must be from 0 to {MAX_DEPTH}, got {value}")
    return value


def parse_max_tokens(text: str) -> int:
    """A number of tokens to generate, or -1."""
    value = _parse_int(text)
    if value < -1 or value == 0:
        raise argparse.ArgumentTypeError(f"must be at least 1, or -1 for no limit, got {value}")
    return value


def parse_positive(text: str) -> int:
    """A whole number of at least 1."""
    value = _parse_int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def parse_count(text: str) -> int:
    """A whole number of at least 0."""
    value = _parse_int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def parse_head(text: str) -> str | Literal[False]:
    """The location of a head; `False` for no head."""
    return False if text == NO_HEAD else text


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add `--prompt`."""
    parser.add_argument(
        "--prompt",
        "-p",
        metavar="TEXT",
        help="the prompt; - reads standard input (default: the beginning of the function "
        "formatyear, which is not in the bundled models' training data)",
    )


def add_head(parser: argparse.ArgumentParser) -> None:
    """Add `--head` and `--no-head`. Both set `head` to a location, `False` or `None`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--head",
        metavar="HEAD",
        type=parse_head,
        help=f"{HEAD_HELP}; {NO_HEAD} is the same as --no-head",
    )
    group.add_argument(
        "--no-head",
        dest="head",
        action="store_const",
        const=False,
        help="load the model without its MTP head",
    )


def add_required_head(parser: argparse.ArgumentParser) -> None:
    """Add `--head` to a command that needs a head."""
    parser.add_argument("--head", metavar="HEAD", help=HEAD_HELP)


def add_depth(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Add `--depth`. Without a default the depth adapts in every round."""
    shown = "adapted in every round" if default is None else "%(default)s"
    parser.add_argument(
        "--depth",
        "--num-draft-tokens",
        type=parse_depth,
        default=default,
        metavar="N",
        help=f"tokens to draft in each round, 0 to {MAX_DEPTH} (default: {shown})",
    )


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    """Add `--max-tokens`."""
    parser.add_argument(
        "--max-tokens",
        "-m",
        type=parse_max_tokens,
        default=default,
        metavar="N",
        help="tokens to generate, -1 for no limit (default: %(default)s)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling options, named as in mlx-lm."""
    group = parser.add_argument_group("sampling, as in mlx-lm")
    add = group.add_argument
    add(
        "--temp",
        type=float,
        default=0.0,
        metavar="T",
        help="temperature (default: %(default)g, greedy)",
    )
    add("--top-p", type=float, default=1.0, metavar="P", help="total probability to keep")
    add("--top-k", type=int, default=0, metavar="K", help="number of tokens to keep")
    add(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="least probability to keep, relative to the most likely token",
    )
    add(
        "--min-tokens-to-keep",
        type=int,
        default=1,
        metavar="N",
        help="tokens that --min-p always keeps",
    )
    add("--xtc-probability", type=float, default=0.0, metavar="P", help="how often XTC is applied")
    add(
        "--xtc-threshold",
        type=float,
        default=0.1,
        metavar="P",
        help="probability above which XTC removes tokens",
    )
    for name in ("repetition", "presence", "frequency"):
        add(f"--{name}-penalty", type=float, metavar="X", help=f"{name} penalty")
    add(
        "--seed",
        type=int,
        metavar="N",
        help="random seed; in mode coupled it determines the text, regardless of the proposer",
    )
    add(
        "--mode",
        choices=MODES,
        default="coupled",
        help="how drafts are verified (default: %(default)s)",
    )


def sampling_from(args: argparse.Namespace) -> Sampling:
    """The sampling options, with a random seed where one is needed and none is given.

    Raises:
        OptionError: A value is out of range.
    """
    seed = args.seed
    if seed is None and args.temp > 0:
        seed = secrets.randbits(31)
    return Sampling(
        temperature=args.temp,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        min_tokens_to_keep=args.min_tokens_to_keep,
        xtc_probability=args.xtc_probability,
        xtc_threshold=args.xtc_threshold,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=seed,
        mode=args.mode,
    )


def read_prompt(text: str) -> str:
    """The prompt that `--prompt` gives.

    Args:
        text: The prompt, or `-` for standard input.

    Raises:
        PromptError: It is empty, is not UTF-8, or standard input cannot be read.
    """
    if text == "-" and sys.stdin is None:
        raise PromptError("the prompt cannot be read from standard input: it is closed")
    try:
        found = sys.stdin.read() if text == "-" else text
        found.encode()
    except UnicodeError as error:
        raise PromptError(f"the prompt is not UTF-8 text: {error}") from error
    except (OSError, ValueError) as error:
        raise PromptError(f"the prompt cannot be read from standard input: {error}") from error
    if not found:
        raise PromptError("the prompt is empty: give --prompt some text")
    return found


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
