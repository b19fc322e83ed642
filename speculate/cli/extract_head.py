"""`speculate extract-head`: a head as a drafter of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from speculate.cli import parsing
from speculate.cli.progress import bars

if TYPE_CHECKING:
    from speculate.checkpoints import HeadFiles, HeadTensors
    from speculate.cli.progress import Bars

SUMMARY: Final = "Write a model's MTP head into a folder of its own, as such are published."
EXAMPLE: Final = "speculate extract-head hybrid --output hybrid-mtp --quantize 4,64"

BITS: Final = (2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)
DEFAULT_GROUP: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=f"where the head is: {parsing.a_model()}")
    add("--output", "-o", type=Path, required=True, metavar="DIR", help="the folder to write")
    add(
        "--quantize",
        type=_packing,
        metavar="BITS,GROUP",
        help="quantise the matrices, routers to 8 bits (default: leave them as they are)",
    )
    add("--force", action="store_true", help="replace a model's folder of that name")


def run(args: argparse.Namespace) -> int:
    """Write the folder."""
    from speculate.checkpoints import find_head
    from speculate.checkpoints.export import (
        check_apart,
        check_free,
        copy_tokenizer,
        head_config,
        new_folder,
        write_head_checkpoint,
    )
    from speculate.checkpoints.folder import wrap_errors
    from speculate.cli.sources import find

    target: Path = args.output
    check_free(target, replace=args.force)
    source = find(args.source, head_only=True)
    check_apart(target, source)
    files = find_head(source)
    with (
        new_folder(target, replace=args.force) as folder,
        wrap_errors(source, "its head cannot be extracted"),
        bars() as shown,
    ):
        head = _read(files, args.quantize, shown)
        config = head_config(files, head)
        writing = shown.begin("Writing", 1)
        copy_tokenizer(files.folder, folder)
        write_head_checkpoint(folder, head, config)
        writing.advance()
    print(f"{target}: {_described(head)}")
    return 0


def _packing(text: str) -> tuple[int, int]:
    """Bits and group of `--quantize`."""
    bits, _, group = text.partition(",")
    try:
        found = int(bits), int(group or DEFAULT_GROUP)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 4,64, got {text!r}") from None
    if found[0] not in BITS or found[1] not in GROUPS:
        raise argparse.ArgumentTypeError(f"bits are of {BITS}, groups of {GROUPS}, got {text!r}")
    return found


def _read(files: HeadFiles, asked: tuple[int, int] | None, shown: Bars) -> HeadTensors:
    from speculate.checkpoints import Quantization, read_head
    from speculate.checkpoints.convert import (
        as_trunks,
        dequantize_head,
        plain_matrices,
        quantize_head,
    )

    size = sum(tensor.end - tensor.begin for tensor in files.tensors.values())
    reading = shown.begin("Reading", size)
    head = read_head(files, done=reading.advance)
    reading.reach(size)
    if asked is None:
        return head
    choose = as_trunks(Quantization(*asked, mode="affine"))
    plain = dequantize_head(head, keep=choose)
    packing = shown.begin("Quantising", len(plain_matrices(plain)))
    return quantize_head(plain, choose, done=lambda _: packing.advance())


def _described(head: HeadTensors) -> str:
    size = sum(array.nbytes for array in head.weights.values())
    raw = any(decision.convention == "raw" for decision in head.norms)
    norms = ", its norms shifted" if raw else ""
    return f"{len(head.weights)} tensors, {size / 1e6:.1f} MB{norms}"
