"""The text of `speculate inspect`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from speculate.checkpoints.head import HeadSummary
from speculate.checkpoints.names import DENSE
from speculate.checkpoints.quantization import Quantization
from speculate.cli.check import Check
from speculate.cli.layers import Architecture
from speculate.cli.printing import printable
from speculate.cli.report import Report

Row = tuple[str, str]
"""A label, empty where the line above goes on, and a text."""


def show(report: Report, check: Check | None) -> None:
    """Print a report: a table in a terminal, aligned lines elsewhere."""
    rows = list(_rows(report))
    if check is not None:
        rows += [("check" if not place else "", line) for place, line in enumerate(check.lines())]
    title, lines = printable(report.path), [(label, printable(text)) for label, text in rows]
    if sys.stdout.isatty():
        _show_in_terminal(title, lines)
        return
    width = max(len(label) for label, _ in lines)
    print(title)
    for label, text in lines:
        print(f"{label:<{width}}  {text}")


def _show_in_terminal(title: str, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        # What comes from a file is text, and never markup.
        table.add_row(label, Text(text))
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(table)


def _rows(report: Report) -> Iterator[Row]:
    made = report.architecture
    yield "family", _family(report.model_type, made)
    if made is not None:
        if made.problem:
            yield "", made.problem
        yield from _layers(made)
        yield "weights", _weights(report.quantization, report.dtypes)
    if report.head is None:
        yield "head", f"none. {report.no_head or ''}".strip()
    else:
        yield from _head(report.prefix or "", report.head)
    yield from _draft_model(report)


def _family(model_type: str | None, made: Architecture | None) -> str:
    name = model_type or "unknown: there is no config.json"
    if made is None:
        return f"{name} (a head on its own)"
    return f"{name} ({made.adapter or 'no adapter drives it'})"


def _layers(made: Architecture) -> Iterator[Row]:
    count = sum(len(group.indices) for group in made.layers)
    if count:
        possible = all(group.can_rewind for group in made.layers)
        yield "layers", f"{count}; tokens can {'' if possible else 'not '}be taken back"
    for group in made.layers:
        yield "", f"{_spans(group.indices)}: {group.cache}: {group.rewind}"


def _spans(indices: Sequence[int]) -> str:
    """Some indices: all of them where they are few, else how many, and the first ones."""
    shown = ", ".join(map(str, indices[:8]))
    return shown if len(indices) <= 8 else f"{shown}, ... ({len(indices)} in all)"


def _weights(quantization: Mapping[str, object] | None, dtypes: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.items())
    if quantization is None:
        return f"not quantised ({kinds})"
    special = sum(isinstance(value, dict) for value in quantization.values())
    named = [f"{k} {v}" for k, v in quantization.items() if not isinstance(v, dict | list)]
    text = f"quantised: {', '.join(named)}"
    return f"{text}; {special} modules otherwise ({kinds})" if special else f"{text} ({kinds})"


def _head(prefix: str, head: HeadSummary) -> Iterator[Row]:
    names = f"{prefix}*" if prefix else "names without prefix"
    yield "head", f"{names} in {', '.join(head.files)}"
    kinds = [kind if kind == DENSE else f"experts {kind}" for kind in head.experts]
    size = f"{head.size_bytes / 1e6:,.1f} MB"
    yield "", f"{head.tensors} tensors, {size}; layers: {', '.join(kinds) or 'none'}"
    parts = [f"{count} matrices {_packing(packing)}" for packing, count in head.packings]
    parts += [f"{count} matrices {dtype}" for dtype, count in head.plain.items()]
    parts += [f"{head.blocks} matrices of scaled 8-bit floats"] if head.blocks else []
    yield "", "; ".join(parts)
    if head.unknown_tensors:
        yield "", f"not understood, and left out: {', '.join(head.unknown_tensors)}"
    for place, norm in enumerate(head.norms):
        stored = "gains" if norm.convention == "gains" else "raw (gains minus one)"
        text = f"{norm.group}: {stored}; mean {norm.mean:.3g}: {norm.reason}"
        yield "" if place else "head norms", text


def _packing(packing: Quantization) -> str:
    return f"{packing.mode} {packing.bits} bits, group {packing.group_size}"


def _draft_model(report: Report) -> Iterator[Row]:
    size = "an unknown size" if report.vocabulary_size is None else report.vocabulary_size
    yield "draft model", f"its vocabulary must have {size}, padding aside"
    if report.tokenizer is None:
        yield "", "its tokenizer must be this model's, which is not in tokenizer.json here"
    else:
        known = report.tokenizer
        text = f"{known.tokens} tokens, fingerprint {known.fingerprint}"
        yield "", f"its tokenizer must be this model's: {text}"
