"""The argument parser of the whole command, and its handling of errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast, final

import attrs

from speculate import __version__
from speculate.cli import bench, demo, generate, heads, inspect, verify
from speculate.cli._arguments import Parser
from speculate.cli._console import one_line_warnings, printable
from speculate.cli._streams import check_output, standard_streams
from speculate.errors import SpeculateError


@final
@attrs.frozen
class Command:
    """A subcommand: `run` returns its exit status; `example` is a command line that works."""

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS: Final[Mapping[str, Command]] = {
    "generate": Command(
        "Generate text with speculative decoding; drafts never change the result.",
        'speculate generate --prompt "def fibonacci(n):" --proposer mtp lookup --stats',
        generate.add_arguments,
        generate.run,
    ),
    "demo": Command(
        "Decode a prompt plain, with the MTP head, and with a draft model.",
        "speculate demo --max-tokens 64 --depth 4",
        demo.add_arguments,
        demo.run,
    ),
    "bench": Command(
        "Measure forwards and drafts on this machine, and the speedup of each strategy.",
        "speculate bench --draft-model draft --tokens 64 --output speculate-bench",
        bench.add_arguments,
        bench.run,
    ),
    "verify": Command(
        "Check that decoding with drafts is exact for a model on this machine.",
        "speculate verify --model hybrid --draft draft --tokens 16",
        verify.add_arguments,
        verify.run,
    ),
    "inspect": Command(
        "Describe a model and its head without loading them.",
        "speculate inspect hybrid --check",
        inspect.add_arguments,
        inspect.run,
    ),
    "extract-head": Command(
        "Write a model's MTP head into a folder of its own, as heads are published.",
        "speculate extract-head hybrid --output hybrid-mtp --quantize 4,64",
        heads.add_extract_arguments,
        heads.run_extract,
    ),
    "convert": Command(
        "Convert a model as mlx_lm.convert does, and keep its MTP head.",
        "speculate convert hybrid hybrid-plain --dequantize",
        heads.add_convert_arguments,
        heads.run_convert,
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "Exact speculative decoding of mlx-lm models."
    examples = "\n  ".join(["Examples:", *(command.example for command in COMMANDS.values())])
    parser = Parser("speculate", description=about, epilog=examples, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about, example = command.summary, f"Example: {command.example}"
        sub = subparsers.add_parser(
            name, help=about, description=about, epilog=example, formatter_class=raw
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
