"""The argument parser of the whole command, and its handling of errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from speculate import __version__
from speculate.cli import bench, demo, generate, heads, inspect, verify
from speculate.cli._arguments import Command, Parser
from speculate.cli._console import one_line_warnings, printable
from speculate.cli._streams import check_output, standard_streams
from speculate.errors import SpeculateError

COMMANDS: Final[Mapping[str, Command]] = {
    "generate": generate.COMMAND,
    "demo": demo.COMMAND,
    "bench": bench.COMMAND,
    "verify": verify.COMMAND,
    "inspect": inspect.COMMAND,
    "extract-head": heads.EXTRACT_HEAD,
    "convert": heads.CONVERT,
}


def make_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = Parser(
        prog="speculate",
        description="Exact speculative decoding of mlx-lm models.",
        epilog="\n  ".join(["Examples:", *(command.example for command in COMMANDS.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.summary,
            description=command.summary,
            epilog=f"Example: {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        The exit status: 2 for input that cannot be used and for output that cannot be written,
        130 after an interrupt, 141 if the reader of standard output has closed it, and otherwise
        that of the subcommand.
    """
    with standard_streams():
        try:
            check_output()
            try:
                args = make_parser().parse_args(argv)
                with one_line_warnings():
                    return cast(Callable[[argparse.Namespace], int], args.run)(args)
            finally:
                # Writing buffered output may fail too, and must fail as part of the command.
                sys.stdout.flush()
        except SpeculateError as error:
            text = printable(" ".join(str(error).split()))
            print(f"speculate: error: {text}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("speculate: interrupted", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main())
