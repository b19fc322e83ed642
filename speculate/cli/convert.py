"""`speculate convert`: mlx-lm's conversion, which keeps the head."""

from __future__ import annotations

import argparse
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from speculate.cli import parsing

if TYPE_CHECKING:
    from speculate.checkpoints.convert import Conversion

SUMMARY: Final = "Convert a model as mlx_lm.convert does, and keep its MTP head."
EXAMPLE: Final = "speculate convert hybrid hybrid-plain --dequantize"

MODES: Final = ("affine", "mxfp4", "nvfp4", "mxfp8")
DTYPES: Final = ("float16", "bfloat16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, which are called as mlx-lm's."""
    add = parser.add_argument
    add("hf_path", metavar="HF_PATH", help=f"what to convert: {parsing.a_model()}")
    add("mlx_path", type=Path, metavar="OUT", help="the folder to write")
    parsing.add_head_alone(parser)
    add("--quantize", "-q", action="store_true", help="quantise the model and its head")
    add("--q-bits", type=int, choices=(2, 3, 4, 5, 6, 8), help="bits a weight")
    add("--q-group-size", type=int, choices=(16, 32, 64, 128), help="weights that share a scale")
    add("--q-mode", choices=MODES, default="affine", help="(default: %(default)s)")
    add("--dtype", choices=DTYPES, help="of what is not quantised (default: as it is)")
    add("--dequantize", "-d", action="store_true", help="unpack a quantised model")
    add("--revision", help="a branch, a tag or a commit of the repository")
    add(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that the model brings along",
    )
    add("--force", action="store_true", help="replace a model's folder of that name")


def run(args: argparse.Namespace) -> int:
    """Write the folder."""
    from speculate.checkpoints import find_head, load_trunk, read_head
    from speculate.checkpoints.convert import HEAD_FILE, convert
    from speculate.checkpoints.export import check_apart, check_free, new_folder
    from speculate.checkpoints.folder import wrap_errors
    from speculate.cli.models import busy
    from speculate.cli.sources import find
    from speculate.loading import check_folder
    from speculate.models.mtp import build_head

    conversion, target = _conversion(args), args.mlx_path
    check_free(target, replace=args.force)
    source = find(args.hf_path, args.revision)
    for place in (source, apart := find(args.head, head_only=True) if args.head else source):
        check_apart(target, place)
    check_folder(source, None)
    files = find_head(apart)
    with new_folder(target, replace=args.force) as folder, busy("Converting ..."):
        with wrap_errors(source, "mlx-lm cannot convert it"), redirect_stdout(StringIO()):
            stock, config = load_trunk(source, lazy=True, trust_remote_code=args.trust_remote_code)
            head = read_head(files)
            # Before gigabytes are written: do the two fit?
            build_head(stock, head)
            convert(stock, config, head, conversion, source, folder)
        find_head(folder)
    print(f"{target}: converted, its head in {HEAD_FILE}")
    return 0


def _conversion(args: argparse.Namespace) -> Conversion:
    from speculate.checkpoints.convert import Conversion

    return Conversion(
        quantize=args.quantize,
        bits=args.q_bits,
        group_size=args.q_group_size,
        mode=args.q_mode,
        dtype=args.dtype,
        dequantize=args.dequantize,
    )
