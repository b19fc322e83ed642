"""Arguments that several subcommands share, and checks that need no model."""

from __future__ import annotations

import argparse
import sys
from typing import Final, Literal, NoReturn, final

from typing_extensions import override

from speculate.errors import PromptError
from speculate.loading import DEMO_MODELS
from speculate.strategies.fixed import MAX_DEPTH

NO_HEAD: Final = "none"
"""What `--head` takes for none; a folder of that name is ./none."""

HEAD_HELP: Final = (
    "where the MTP head is, if not with the model: a folder, a safetensors file, a hub "
    "repository (--head owner/name-mtp), or hybrid, the bundled model that has one"
)


@final
class Parser(argparse.ArgumentParser):
    """One whose errors take one line."""

    @override
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def depth(text: str) -> int:
    """Tokens to draft."""
    value = _whole(text)
    if not 0 <= value <= MAX_DEPTH:
        raise argparse.ArgumentTypeError(f"must be from 0 to {MAX_DEPTH}, got {value}")
    return value


def max_tokens(text: str) -> int:
    """Tokens to generate, or -1."""
    value = _whole(text)
    if value < -1 or value == 0:
        raise argparse.ArgumentTypeError(f"must be at least 1, or -1 for no limit, got {value}")
    return value


def positive(text: str) -> int:
    """A number of things of which there must be one."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def count(text: str) -> int:
    """A number of things, possibly none."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add `--prompt`."""
    parser.add_argument(
        "--prompt",
        "-p",
        metavar="TEXT",
        help="what to go on from; - reads standard input (default: the beginning of the function "
        "formatyear, which the bundled models have not seen)",
    )


def head(text: str) -> str | Literal[False]:
    """Where a head is, or that none is wanted."""
    return False if text == NO_HEAD else text


def add_head(parser: argparse.ArgumentParser) -> None:
    """Add `--head` and `--no-head`, both of which are `head`: a place, `False` or `None`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--head", metavar="HEAD", type=head, help=f"{HEAD_HELP}; {NO_HEAD} is --no-head"
    )
    group.add_argument(
        "--no-head",
        dest="head",
        action="store_const",
        const=False,
        help="load the model without an MTP head, whatever its folder holds",
    )


def add_head_alone(parser: argparse.ArgumentParser) -> None:
    """Add `--head` to a command that is nothing without a head."""
    parser.add_argument("--head", metavar="HEAD", help=HEAD_HELP)


def add_depth(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Add `--depth`; without a default it is found out, round by round."""
    shown = "as many as pay, round by round" if default is None else "%(default)s"
    parser.add_argument(
        "--depth",
        "--num-draft-tokens",
        type=depth,
        default=default,
        metavar="N",
        help=f"tokens to draft for each target pass, 0 to {MAX_DEPTH} (default: {shown})",
    )


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    """Add `--max-tokens`."""
    parser.add_argument(
        "--max-tokens",
        "-m",
        type=max_tokens,
        default=default,
        metavar="N",
        help="tokens to generate, -1 for no limit (default: %(default)s)",
    )


def a_model() -> str:
    """What an option that names a model takes."""
    return f"a folder, a hub repository, or a bundled model: {', '.join(DEMO_MODELS)}"


def read_prompt(text: str) -> str:
    """The prompt that `--prompt` names.

    Raises:
        PromptError: It is empty, or no text, or standard input cannot be read.
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


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
