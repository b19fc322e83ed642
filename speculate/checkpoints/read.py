"""Reading a head: whatever its layout was, one form comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import mlx.core as mx

from speculate.checkpoints.experts import DENSE, is_expert, is_single, layouts, stack_experts
from speculate.checkpoints.find import HeadFiles
from speculate.checkpoints.folder import setting
from speculate.checkpoints.fp8 import matrix_of, unpack_scaled
from speculate.checkpoints.names import is_known, rank, required
from speculate.checkpoints.norms import Convention, NormDecision, decide, shift
from speculate.checkpoints.quantization import (
    SUPPORTED,
    Quantization,
    quantizations,
    stored_as,
)
from speculate.checkpoints.tensors import check_memory, open_tensors, read_tensors
from speculate.errors import CheckpointError

_logger = logging.getLogger(__name__)

DEDICATED: Final = "mtp_use_dedicated_embeddings"
EMBEDDINGS: Final = ("embed_tokens.", "lm_head.", "shared_head.")


@attrs.frozen(eq=False)
class HeadTensors:
    """A whole head, in the names and the form that mlx-lm's layers use.

    Attributes:
        weights: By name without prefix: `fc.weight`, `layers.0.self_attn.q_proj.weight`, ...
            Norms hold gains; experts are stacked as `mlp.switch_mlp`.
        quantization: By module; what is not in it is not quantised.
        norms: What was decided on each group of norms, and why.
        experts: How each layer's experts were stored: `dense` where it has none.
        leftovers: Names on disk that no part of a head is known by. They were not read.
    """

    weights: Mapping[str, mx.array] = attrs.field(repr=False)
    quantization: Mapping[str, Quantization]
    norms: tuple[NormDecision, ...]
    experts: tuple[str, ...]
    leftovers: tuple[str, ...]


def read_head(
    files: HeadFiles,
    *,
    norms: Convention | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> HeadTensors:
    """Read a head's tensors, and nothing else of the files. Synchronises.

    Args:
        files: From `find_head`.
        norms: How its norms are stored, where a person knows better; found out otherwise.
        done: Called with the bytes of each tensor that has been read.

    Raises:
        CheckpointError: The head is not whole, or stored in a way that is not supported.
            Names the tensor.
    """
    _refuse_embeddings(files)
    leftovers = [name for name in files.tensors if not is_part(name)]
    weights = _read(files, leftovers, done)
    experts = layouts(files.tensors)
    _check_whole(files, weights, experts, leftovers)
    decisions = decide(weights, files.trunk_is_raw, norms)
    shift(weights, decisions)
    with about(files):
        quantization = quantizations(weights)
        _check_plain(files, weights, quantization)
        mx.eval(weights)
    on_disk = tuple(files.prefix + name for name in leftovers)
    if on_disk:
        # Quoted: a name may hold what moves a terminal's cursor.
        quoted = ", ".join(map(repr, on_disk))
        _logger.warning("%s: no part of a head, left out: %s", files.folder, quoted)
    return HeadTensors(weights, quantization, decisions, tuple(experts), on_disk)


@contextmanager
def about(files: HeadFiles) -> Iterator[None]:
    """Say of which file or folder an error speaks that only knows a tensor's name.

    Raises:
        CheckpointError: The body raised one, or could not read a tensor.
    """
    places = {tensor.path for tensor in files.tensors.values()}
    place = places.pop() if len(places) == 1 else files.folder
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{place}: cannot be read: {error}") from error


def is_part(name: str) -> bool:
    """Whether a name on disk, without prefix, is one that a head may have in any layout."""
    plain = matrix_of(name) or name
    return is_known(plain) or is_expert(plain)


def _read(
    files: HeadFiles, leftovers: Collection[str], done: Callable[[int], None]
) -> dict[str, mx.array]:
    wanted = {name: t for name, t in files.tensors.items() if name not in leftovers}
    check_memory(wanted)
    singles = {name: t for name, t in wanted.items() if is_single(matrix_of(name) or name)}
    weights = read_tensors({n: t for n, t in wanted.items() if n not in singles}, done)
    # These are read one by one, as they are stacked.
    weights |= open_tensors(singles)
    with about(files):
        norm = weights.get("pre_fc_norm_hidden.weight")
        dtype = mx.bfloat16 if norm is None else norm.dtype
        unpack_scaled(weights, files.tensors, files.config, dtype)
        stack_experts(weights, done)
    return weights


def _refuse_embeddings(files: HeadFiles) -> None:
    """A head that was trained with matrices of its own is not served by the trunk's."""
    flag = setting(files.config, DEDICATED)
    own = [name for name in files.tensors if name.startswith(EMBEDDINGS)]
    if flag is False or not (own or flag):
        return
    what = f"{files.prefix}{own[0]}" if own else f"config.json: {DEDICATED}"
    raise CheckpointError(
        f"{files.folder}: the head has embeddings of its own ({what}), which is not supported"
    )


def _check_whole(
    files: HeadFiles,
    weights: Mapping[str, mx.array],
    experts: Sequence[str],
    leftovers: Sequence[str],
) -> None:
    with_experts = [index for index, layout in enumerate(experts) if layout != DENSE]
    needed = required(max(len(experts), 1), with_experts)
    for name, weight in weights.items():
        if weight.ndim != rank(name):
            text = f"{files.folder}: {files.prefix}{name} has shape {weight.shape}"
            raise CheckpointError(f"{text}, and needs {rank(name)} axes")
    missing = [files.prefix + name for name in needed if name not in weights]
    if missing:
        text = f"{files.folder}: holds part of a head only: {missing[0]} is missing"
        text += f", and {len(missing) - 1} more" if missing[1:] else ""
        if stored := stored_as(files.tensors, missing[0].removeprefix(files.prefix)):
            text += f": {stored}, which is no packing that is supported. {SUPPORTED}"
        text += f". Not understood: {', '.join(leftovers)}" if leftovers else ""
        raise CheckpointError(text)


def _check_plain(
    files: HeadFiles, weights: Mapping[str, mx.array], packed: Collection[str]
) -> None:
    for name, tensor in weights.items():
        module, _, part = name.rpartition(".")
        plain = part == "weight" and module not in packed
        if plain and not mx.issubdtype(tensor.dtype, mx.floating):
            # An expert's name on disk is another one.
            stored = stored_as(files.tensors, name) or str(tensor.shape)
            raise CheckpointError(
                f"{name}: is {tensor.dtype} in a packing that is not supported: {stored}. "
                f"{SUPPORTED}"
            )
