"""The parser of the whole command, and what becomes of errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from typing_extensions import Protocol

from speculate.cli import convert, demo, extract_head, generate, inspect
from speculate.cli.bench import command as bench
from speculate.cli.parsing import Parser
from speculate.cli.printing import printable, warnings_in_a_line
from speculate.cli.streams import check_output, standard_streams
from speculate.cli.verify import command as verify
from speculate.errors import SpeculateError
from speculate.version import VERSION

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


class Command(Protocol):
    """A subcommand's module."""

    @property
    def SUMMARY(self) -> str:
        """What it does, in a sentence."""

    @property
    def EXAMPLE(self) -> str:
        """A command line that works as it stands."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; return the exit status."""


COMMANDS: Final[Mapping[str, Command]] = {
    "generate": generate,
    "demo": demo,
    "bench": bench,
    "verify": verify,
    "inspect": inspect,
    "extract-head": extract_head,
    "convert": convert,
}


def make_parser() -> argparse.ArgumentParser:
    """The parser, with all subcommands."""
    parser = Parser(
        prog="speculate",
        description="Exact speculative decoding of mlx-lm models.",
        epilog="\n  ".join(["Examples:", *(command.EXAMPLE for command in COMMANDS.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.SUMMARY,
            epilog=f"Example: {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    2 for input that cannot be used, and for output that cannot be written; 130 when interrupted;
    141 when whoever read the output has left.

    Args:
        argv: Arguments; those of the process by default.
    """
    with standard_streams():
        try:
            return _run(argv)
        except SpeculateError as error:
            text = printable(" ".join(str(error).split()))
            print(f"speculate: error: {text}", file=sys.stderr)
            return BAD_INPUT
        except KeyboardInterrupt:
            print("speculate: interrupted", file=sys.stderr)
            return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    check_output()
    try:
        args = make_parser().parse_args(argv)
        with warnings_in_a_line():
            return cast(Callable[[argparse.Namespace], int], args.run)(args)
    finally:
        # What is still in a buffer may fail as well, and so counts as the command's.
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
