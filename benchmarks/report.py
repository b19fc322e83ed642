"""What a benchmark leaves behind: a table as text, and JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

import attrs

from benchmarks import regime
from benchmarks.clock import counts_processor

RESULTS: Final = Path(__file__).parent / "results"


@final
@attrs.frozen
class Options:
    """How to run a benchmark.

    Attributes:
        quick: Few repeats and the smallest models: whether it works, not how fast.
        folder: Where JSON and pictures go.
        short: Half an hour's worth on a machine that has other things to do: one prompt of a
            kind, and the first of several large models.
    """

    quick: bool
    folder: Path
    short: bool = False

    def some(self, many: int, few: int = 1) -> int:
        """So many repeats, or few of them."""
        return few if self.quick or self.short else many


@final
@attrs.frozen
class Table:
    """Rows of text, the first of which is the heading.

    Attributes:
        title: Above it.
        rows: Cells. All rows are of one length.
    """

    title: str
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        heading, *rest = (_line(row, widths) for row in self.rows)
        rule = "|".join(["", *("-" * (width + 2) for width in widths), ""])
        return "\n".join([self.title, "", heading, rule, *rest])


def options(description: str | None) -> Options:
    """Read the command line, and enter the regime that speed is measured in."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few repeats and small models")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for JSON and PNG")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="one thread, by the processor's time: for a machine with other things to do",
    )
    parser.add_argument("--short", action="store_true", help="one prompt of a kind, one model")
    given = parser.parse_args()
    regime.enter(1 if given.busy else regime.THREADS)
    return Options(given.quick, given.output, given.short)


def save(options: Options, name: str, tables: Sequence[Table], data: Mapping[str, object]) -> None:
    """Print tables, and write them with all that was measured.

    Args:
        options: How this ran.
        name: Of the JSON file, without its ending.
        tables: To read.
        data: What they were made from.
    """
    print(*(f"\n{table}" for table in tables), sep="\n", flush=True)
    record = {
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "environment": regime.environment(),
        "load": os.getloadavg(),
        "clock": "processor" if counts_processor() else "wall",
        "quick": options.quick,
        "short": options.short,
        **data,
        "tables": {table.title: [*map(list, table.rows)] for table in tables},
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{name}.json"
    text = json.dumps(record, indent=1, default=attrs.asdict)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten: {path}", flush=True)


def progress(text: str) -> None:
    """Say what is done, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(row, widths, strict=True)
    cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return f"| {' | '.join(cells)} |"
