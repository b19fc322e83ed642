"""Finding, reading and summarising a head, by its tensors and never by what a config claims."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import mlx.core as mx

from speculate.checkpoints import names
from speculate.checkpoints.folder import (
    INDEX_SUFFIX,
    FolderScan,
    scan_folder,
    setting,
    visible_files,
)
from speculate.checkpoints.norms import Convention, NormDecision, decide, shift
from speculate.checkpoints.quantization import (
    Packings,
    Quantization,
    dequantize,
    matrix_of,
    plain_matrices,
    quantizations,
    stored_as,
    unpack_scaled,
)
from speculate.checkpoints.safetensors import (
    SUPPORTED,
    Entries,
    TensorEntry,
    check_memory,
    naming,
    open_tensors,
)
from speculate.errors import CheckpointError, HeadNotFoundError, StaleIndexError

_logger = logging.getLogger(__name__)

DEDICATED: Final = "mtp_use_dedicated_embeddings"
"""The entry of a config that says that a head has embeddings of its own."""


@attrs.frozen
class HeadFiles:
    """The location of a head's tensors.

    Attributes:
        folder: The checkpoint's folder.
        prefix: Prefix of the head's names on disk; empty in a head checkpoint.
        tensors: Tensors by name without the prefix.
        files: Every file whose header was read, also those without a head.
        trunk_is_raw: Whether the trunk of the same checkpoint is in the form that Hugging Face
            publishes; `None` if there is no trunk to tell by.
        config: `config.json`; empty if there is none.
    """

    folder: Path
    prefix: str
    tensors: Mapping[str, TensorEntry]
    files: tuple[Path, ...]
    trunk_is_raw: bool | None
    config: Mapping[str, object] = attrs.field(repr=False)


def find_head(path: Path) -> HeadFiles:
    """Find the head of a checkpoint. Reads headers only, and no tensor.

    Args:
        path: A folder, or one safetensors file that holds a head.

    Raises:
        HeadNotFoundError: There is none. Names the tensors looked for and the files read.
        StaleIndexError: There is none, although the index lists one.
        CheckpointError: A file is damaged or missing, or there is more than one head.
    """
    found = scan_folder(path)
    candidates = _candidates(found)
    _check_listed(found, partly_there=bool(candidates))
    if not candidates:
        raise HeadNotFoundError(_not_found(path, found))
    if len(candidates) > 1:
        kinds = " and ".join(f"'{prefix}*'" for prefix in sorted(candidates))
        raise CheckpointError(f"{path}: holds more than one head: {kinds}. Name the file of one")
    prefix, tensors = candidates.popitem()
    for name, (one, other) in found.clashes.items():
        if name.startswith(prefix) if prefix else names.strip_prefix(name) is None:
            raise CheckpointError(
                f"{found.folder}: both {one.name} and {other.name} hold {name}, and no index "
                "says which one counts. Name the file of the head"
            )
    # mlx-lm's conversion moves the kernel axis of convolutions to the end, where it is 1.
    ends = [t.shape[-1] for n, t in found.tensors.items() if "conv1d.weight" in n and t.shape]
    trunk_is_raw = any(end != 1 for end in ends) if ends else None
    return HeadFiles(found.folder, prefix, tensors, found.files, trunk_is_raw, found.config)


def has_head(path: Path) -> bool:
    """Return whether a checkpoint holds a head.

    Raises:
        CheckpointError: A file is damaged or missing, so the answer is unknown.
    """
    try:
        find_head(path)
    except HeadNotFoundError:
        return False
    return True


def _candidates(found: FolderScan) -> dict[str, dict[str, TensorEntry]]:
    heads: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    by_file: dict[Path, dict[str, TensorEntry]] = defaultdict(dict)
    for name, tensor in found.tensors.items():
        split = names.strip_prefix(name)
        if split is None:
            by_file[tensor.path][name] = tensor
        else:
            heads[split[0]][split[1]] = tensor
    for tensors in by_file.values():
        if names.are_bare(tensors):
            heads[""].update(tensors)
    return dict(heads)


def _check_listed(found: FolderScan, *, partly_there: bool) -> None:
    """Refuse an index that lists tensors of a head which no file holds."""
    absent: dict[Path, list[str]] = defaultdict(list)
    for name, file in found.listed.items():
        if name not in found.tensors:
            absent[file].append(name)
    for file, listed in absent.items():
        if not (lost := names.of_head(listed)):
            continue
        state = "does not hold it" if os.path.exists(file) else "is missing"
        index = ", ".join(map(str, visible_files(found.folder, INDEX_SUFFIX)))
        text = f"{index}: lists {lost[0]} in {file.name}, which {state}"
        if partly_there:
            raise CheckpointError(
                f"{text}. Download the whole folder, or load it without its head (head=False, "
                "or --no-head)"
            )
        raise StaleIndexError(
            f"{text}, and no file here holds a head. If this is the index of the checkpoint "
            "that this one was made from, delete it; if not, download the whole folder. "
            "head=False, or --no-head, loads the model without a head"
        )


def _not_found(path: Path, found: FolderScan) -> str:
    looked = ", ".join(f"{prefix}*" for prefix in names.PREFIXES)
    read = ", ".join(file.name for file in found.files) or "no .safetensors file"
    text = (
        f"{path}: no multi-token-prediction head. Looked for tensors named {looked}, and for "
        f"a head checkpoint's (fc.weight, pre_fc_norm_hidden.weight, ...). Read: {read}."
    )
    if not path.is_dir():
        return text
    if pickles := [p.name for p in sorted(path.iterdir()) if p.suffix in (".bin", ".pt", ".pth")]:
        text += f" Pickled weights are never opened: {', '.join(pickles)}."
    if setting(found.config, "mtp_num_hidden_layers"):
        text += " config.json claims one: conversions often drop its tensors and keep the entry."
    return text


@attrs.frozen(eq=False)
class HeadTensors:
    """A whole head, with the names and the form that mlx-lm's layers use.

    Attributes:
        weights: Tensors by name without prefix: `fc.weight`,
            `layers.0.self_attn.q_proj.weight`, ... Norms hold gains; experts are stacked as
            `mlp.switch_mlp`.
        quantization: How each quantised module is packed; others are not quantised.
        norms: The convention of each group of norms, and why.
        experts: How each layer's experts were stored; `dense` for a layer without experts.
        unknown_tensors: Names on disk that belong to no known part of a head. They were not read.
    """

    weights: Mapping[str, mx.array] = attrs.field(repr=False)
    quantization: Mapping[str, Quantization]
    norms: tuple[NormDecision, ...]
    experts: tuple[str, ...]
    unknown_tensors: tuple[str, ...]

    def dequantized(self) -> HeadTensors:
        """Return the same head, unquantised in float32.

        Raises:
            CheckpointError: Each expert has a scale of its own, which only a GPU dequantises.
        """
        weights = dequantize(self.weights, self.quantization, mx.float32)
        return attrs.evolve(self, weights=weights, quantization={})


def read_head(
    files: HeadFiles,
    *,
    norms: Convention | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> HeadTensors:
    """Read a head's tensors, and nothing else of the files. Synchronises.

    Args:
        files: From `find_head`.
        norms: How all norms are stored; by default decided group by group.
        done: Called after each tensor was read, with its size in bytes.

    Raises:
        CheckpointError: The head is incomplete, or stored in an unsupported way.
    """
    _refuse_embeddings(files)
    wanted = _known(files)
    weights = _read(files, wanted, done)
    unknown = [name for name in files.tensors if name not in wanted]
    _check_whole(files, weights, unknown)
    decisions = decide(weights, files.trunk_is_raw, norms)
    shift(weights, decisions)
    with naming(_place(files)):
        quantization = quantizations(weights)
        _check_plain(files, weights, quantization)
        mx.eval(weights)
    on_disk = tuple(files.prefix + name for name in unknown)
    if on_disk:
        # Quoted: a name may contain terminal control characters.
        quoted = ", ".join(map(repr, on_disk))
        _logger.warning("%s: no part of a head, left out: %s", files.folder, quoted)
    experts = tuple(names.layouts(files.tensors))
    return HeadTensors(weights, quantization, decisions, experts, on_disk)


def _place(files: HeadFiles) -> Path:
    """Return the file that holds the head, or the folder if there are several."""
    places = {tensor.path for tensor in files.tensors.values()}
    return places.pop() if len(places) == 1 else files.folder


def _known(files: HeadFiles) -> dict[str, TensorEntry]:
    """Return the tensors that belong to a head in any layout; scales belong with their matrix."""
    found = files.tensors.items()
    return {name: tensor for name, tensor in found if names.is_known(matrix_of(name) or name)}


def _read(files: HeadFiles, wanted: Entries, done: Callable[[int], None]) -> dict[str, mx.array]:
    check_memory(wanted)
    weights = open_tensors(wanted)
    for name, tensor in wanted.items():
        # Single experts are read one by one when they are stacked.
        if not names.is_single(matrix_of(name) or name):
            with naming(tensor.path):
                mx.eval(weights[name])
            done(tensor.size)
    with naming(_place(files)):
        norm = weights.get("pre_fc_norm_hidden.weight")
        dtype = mx.bfloat16 if norm is None else norm.dtype
        unpack_scaled(weights, files.tensors, files.config, dtype)
        names.split_fused(weights)
        names.stack_singles(weights, done)
    return weights


def _refuse_embeddings(files: HeadFiles) -> None:
    """Refuse a head with embeddings of its own: it shares the trunk's here."""
    flag = setting(files.config, DEDICATED)
    places = ("embed_tokens.", "lm_head.", "shared_head.")
    own = [name for name in files.tensors if name.startswith(places)]
    if flag is False or not (own or flag):
        return
    what = f"{files.prefix}{own[0]}" if own else f"config.json: {DEDICATED}"
    raise CheckpointError(
        f"{files.folder}: the head has embeddings of its own ({what}), which is not supported"
    )


def _check_whole(files: HeadFiles, weights: Mapping[str, mx.array], unknown: Sequence[str]) -> None:
    for name, weight in weights.items():
        if weight.ndim != (rank := names.rank(name)):
            text = f"{files.folder}: {files.prefix}{name} has shape {weight.shape}"
            raise CheckpointError(f"{text}, and needs {rank} axes")
    needed = names.required(names.layouts(files.tensors) or [names.DENSE])
    if missing := [name for name in needed if name not in weights]:
        first, *others = missing
        text = f"{files.folder}: holds only a part of a head: {files.prefix}{first} is missing"
        text += f", and {len(others)} more" if others else ""
        if stored := stored_as(files.tensors, first):
            text += f": {stored}, which is not a supported packing. {SUPPORTED}"
        text += f". Unknown names: {', '.join(unknown)}" if unknown else ""
        raise CheckpointError(text)


def _check_plain(files: HeadFiles, weights: Mapping[str, mx.array], packed: Packings) -> None:
    for name, tensor in weights.items():
        module, _, part = name.rpartition(".")
        if part != "weight" or module in packed or mx.issubdtype(tensor.dtype, mx.floating):
            continue
        # A stacked expert has another name on disk.
        stored = stored_as(files.tensors, name) or str(tensor.shape)
        text = f"{name}: is {tensor.dtype} in an unsupported packing: {stored}. {SUPPORTED}"
        raise CheckpointError(text)


@attrs.frozen
class HeadSummary:
    """A description of a head, without its weights.

    Attributes:
        files: Names of the files that hold it.
        tensors: Number of tensors on disk.
        size_bytes: Their size on disk, in bytes.
        experts: How each layer's experts are stored; `dense` for a layer without experts.
        packings: Each quantisation, with its number of matrices.
        plain: Dtype -> number of unquantised matrices.
        blocks: Number of matrices of 8-bit floats with scales.
        norms: The convention of each group of norms, and why.
        unknown_tensors: Names on disk that belong to no known part of a head.
    """

    files: tuple[str, ...]
    tensors: int
    size_bytes: int
    experts: tuple[str, ...]
    packings: tuple[tuple[Quantization, int], ...]
    plain: Mapping[str, int]
    blocks: int
    norms: tuple[NormDecision, ...]
    unknown_tensors: tuple[str, ...]


def summarize_head(files: HeadFiles) -> HeadSummary:
    """Describe a head. Reads its norms, a few kilobytes, and nothing else.

    Args:
        files: From `find_head`.

    Raises:
        CheckpointError: It has no norms, or a quantisation that mlx does not have.
    """
    known = _known(files)
    weights = open_tensors({name: t for name, t in known.items() if matrix_of(name) is None})
    partial = f"{files.folder}: holds only a part of a head"
    for name in names.norms(max(names.count_layers(weights), 1)):
        if name not in weights:
            raise CheckpointError(f"{partial}: {files.prefix}{name} is missing")
    decisions = decide(weights, files.trunk_is_raw)
    try:
        with naming(_place(files)):
            names.split_fused(weights)
            packings = quantizations(weights)
    except (KeyError, IndexError) as error:
        raise CheckpointError(f"{partial}: {error}") from error
    blocks = {matrix for name in files.tensors if (matrix := matrix_of(name))}
    modules = plain_matrices(weights, packings)
    plain = [weights[f"{m}.weight"].dtype for m in modules if f"{m}.weight" not in blocks]
    return HeadSummary(
        files=tuple(sorted({tensor.path.name for tensor in files.tensors.values()})),
        tensors=len(files.tensors),
        size_bytes=sum(tensor.size for tensor in files.tensors.values()),
        experts=tuple(names.layouts(files.tensors)),
        packings=tuple(Counter(packings.values()).most_common()),
        plain=dict(Counter(str(dtype).rpartition(".")[2] for dtype in plain)),
        blocks=len(blocks),
        norms=decisions,
        unknown_tensors=tuple(files.prefix + n for n in files.tensors if n not in known),
    )
