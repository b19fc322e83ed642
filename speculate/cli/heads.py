"""`speculate convert` writes a model with its head; `speculate extract-head` a head alone."""

from __future__ import annotations

import argparse
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

from speculate.cli._arguments import BITS, GROUP_SIZES, HEAD_HELP, MODEL_HELP
from speculate.cli._console import progress_bars, spinner
from speculate.cli._models import find_checkpoint


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert`, named as in mlx-lm."""
    add = parser.add_argument
    add("hf_path", metavar="HF_PATH", help=f"the model to convert: {MODEL_HELP}")
    add("mlx_path", type=Path, metavar="OUT", help="the folder to write")
    add("--head", metavar="HEAD", help=HEAD_HELP)
    add("--quantize", "-q", action="store_true", help="quantise the model and its head")
    add("--q-bits", type=int, choices=BITS, help="bits a weight")
    sizes, modes = (16, *GROUP_SIZES), ("affine", "mxfp4", "nvfp4", "mxfp8")
    add("--q-group-size", type=int, choices=sizes, help="weights that share a scale")
    add("--q-mode", choices=modes, default="affine", help="(default: %(default)s)")
    dtypes = ("float16", "bfloat16", "float32")
    add("--dtype", choices=dtypes, help="dtype of other weights (default: unchanged)")
    add("--dequantize", "-d", action="store_true", help="dequantise a quantised model")
    add("--revision", help="branch, tag or commit of the repository")
    code = "run Python code that comes with the model"
    add("--trust-remote-code", action="store_true", help=code)
    add("--force", action="store_true", help="replace an existing model folder")


def run_convert(args: argparse.Namespace) -> int:
    """Write the converted model with its head."""
    from speculate.checkpoints import find_head, load_trunk, read_head
    from speculate.checkpoints.convert import HEAD_FILE, Conversion, convert
    from speculate.checkpoints.export import check_apart, check_free, new_folder
    from speculate.checkpoints.folder import wrap_errors
    from speculate.loading import check_folder
    from speculate.models.mtp import build_head

    conversion = Conversion(
        quantize=args.quantize,
        bits=args.q_bits,
        group_size=args.q_group_size,
        mode=args.q_mode,
        dtype=args.dtype,
        dequantize=args.dequantize,
    )
    target: Path = args.mlx_path
    check_free(target, replace=args.force)
    source = find_checkpoint(args.hf_path, args.revision)
    head_source = find_checkpoint(args.head, head_only=True) if args.head else source
    for place in (source, head_source):
        check_apart(target, place)
    check_folder(source, None)
    files = find_head(head_source)
    with new_folder(target, replace=args.force) as folder, spinner("Converting ..."):
        with wrap_errors(source, "mlx-lm cannot convert it"), redirect_stdout(StringIO()):
            stock, config = load_trunk(source, lazy=True, trust_remote_code=args.trust_remote_code)
            head = read_head(files)
            # Fails if the head does not fit the model, before gigabytes are written.
            build_head(stock, head)
            convert(stock, config, head, conversion, source, folder)
        find_head(folder)
    print(f"{target}: converted, its head in {HEAD_FILE}")
    return 0


def add_extract_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `extract-head`."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help=f"where the head is: {MODEL_HELP}")
    add("--output", "-o", type=Path, required=True, metavar="DIR", help="the folder to write")
    packing = "quantise the matrices, routers to 8 bits (default: unchanged)"
    add("--quantize", type=parse_packing, metavar="BITS,GROUP", help=packing)
    add("--force", action="store_true", help="replace an existing model folder")


def parse_packing(text: str) -> tuple[int, int]:
    """Bits and group size of `extract-head --quantize`; the group is 64 by default."""
    bits, _, group = text.partition(",")
    try:
        found = int(bits), int(group or 64)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 4,64, got {text!r}") from None
    if found[0] not in BITS or found[1] not in GROUP_SIZES:
        allowed = f"bits must be in {BITS} and the group in {GROUP_SIZES}"
        raise argparse.ArgumentTypeError(f"{allowed}, got {text!r}")
    return found


def run_extract(args: argparse.Namespace) -> int:
    """Write the head as a checkpoint of its own."""
    from speculate.checkpoints import Quantization, convert, export, find_head, read_head
    from speculate.checkpoints.folder import wrap_errors
    from speculate.checkpoints.quantization import plain_matrices

    target: Path = args.output
    export.check_free(target, replace=args.force)
    source = find_checkpoint(args.source, head_only=True)
    export.check_apart(target, source)
    files = find_head(source)
    with (
        export.new_folder(target, replace=args.force) as folder,
        wrap_errors(source, "its head cannot be extracted"),
        progress_bars() as shown,
    ):
        size = sum(tensor.size for tensor in files.tensors.values())
        reading = shown.add("Reading", size)
        head = read_head(files, done=partial(shown.advance, reading))
        shown.advance(reading, size)  # Unknown tensors are not read.
        if args.quantize is not None:
            bits, group = args.quantize
            choose = convert.as_trunks(Quantization(bits, group, "affine"))
            head = convert.dequantize_head(head, keep=choose)
            plain = plain_matrices(head.weights, head.quantization)
            quantizing = shown.add("Quantising", len(plain))
            head = convert.quantize_head(head, choose, done=lambda _: shown.advance(quantizing))
        config = export.head_config(files, head)
        writing = shown.add("Writing", 1)
        export.copy_tokenizer(files.folder, folder)
        export.write_head_checkpoint(folder, head, config)
        shown.advance(writing)
    written = sum(array.nbytes for array in head.weights.values()) / 1e6
    raw = any(decision.convention == "raw" for decision in head.norms)
    norms = ", norms converted to gains" if raw else ""
    print(f"{target}: {len(head.weights)} tensors, {written:.1f} MB{norms}")
    return 0
