"""Finding a head: by its tensors, never by what a config promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import attrs

from speculate.checkpoints.folder import Survey, exists, indexes, listed, setting, survey
from speculate.checkpoints.header import TensorEntry
from speculate.checkpoints.names import PREFIXES, are_bare, strip_prefix
from speculate.errors import CheckpointError, HeadNotFoundError, StaleIndexError


@attrs.frozen
class HeadFiles:
    """Where a head's tensors are.

    Attributes:
        folder: The checkpoint's folder.
        prefix: What stands before the head's names on disk; empty in a drafter.
        tensors: By name, without the prefix.
        files: Every file whose header was read, also those without a head.
        trunk_is_raw: Whether the trunk beside the head is as Hugging Face publishes it;
            `None` where there is none to tell by.
        config: `config.json`, or nothing.
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
        path: A folder, or one safetensors file of a head.

    Raises:
        HeadNotFoundError: There is none. Names the folder, what was looked for and the
            files that were read.
        StaleIndexError: Likewise, although the index lists one. Names the index.
        CheckpointError: A file is damaged or missing, or there is more than one head.
    """
    found = survey(path)
    candidates = _candidates(found)
    _check_listed(found, partly_there=bool(candidates))
    if not candidates:
        raise HeadNotFoundError(_not_found(path, found))
    if len(candidates) > 1:
        kinds = " and ".join(f"'{prefix}*'" for prefix in sorted(candidates))
        raise CheckpointError(f"{path}: holds more than one head: {kinds}. Name the file of one")
    prefix, tensors = candidates.popitem()
    _check_clashes(found, prefix)
    return HeadFiles(
        folder=found.folder,
        prefix=prefix,
        tensors=tensors,
        files=found.files,
        trunk_is_raw=_trunk_is_raw(found),
        config=found.config,
    )


def has_head(path: Path) -> bool:
    """Whether a checkpoint holds a head.

    Raises:
        CheckpointError: A file is damaged or missing, so that nobody can tell.
    """
    try:
        find_head(path)
    except HeadNotFoundError:
        return False
    return True


def listed_files(folder: Path) -> list[str]:
    """Names of the files that a folder's index says hold a head, whether they are there or not.

    Raises:
        CheckpointError: The index is broken, or points out of the folder.
    """
    places = listed(folder) if folder.is_dir() else {}
    names = places if are_bare(places) else [name for name in places if strip_prefix(name)]
    return sorted({places[name].relative_to(folder).as_posix() for name in names})


def _candidates(found: Survey) -> dict[str, dict[str, TensorEntry]]:
    heads: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    by_file: dict[Path, dict[str, TensorEntry]] = defaultdict(dict)
    for name, tensor in found.tensors.items():
        split = strip_prefix(name)
        if split is None:
            by_file[tensor.path][name] = tensor
        else:
            heads[split[0]][split[1]] = tensor
    for tensors in by_file.values():
        if are_bare(tensors):
            heads[""].update(tensors)
    return dict(heads)


def _check_listed(found: Survey, *, partly_there: bool) -> None:
    """What the index says of a head must be true."""
    absent: dict[Path, list[str]] = defaultdict(list)
    for name, file in found.listed.items():
        if name not in found.tensors:
            absent[file].append(name)
    for file, names in absent.items():
        head = names if are_bare(names) else [name for name in names if strip_prefix(name)]
        if head:
            state = "does not hold it" if exists(file) else "is missing"
            index = ", ".join(map(str, indexes(found.folder)))
            text = f"{index}: lists {head[0]} in {file.name}, which {state}"
            if partly_there:
                raise CheckpointError(
                    f"{text}. Download the folder whole, or load it without its head (head=False, "
                    "or --no-head)"
                )
            raise StaleIndexError(
                f"{text}, and no file here holds a head. If this is the index of the checkpoint "
                "that this one was made from, delete it; if not, download the folder whole. "
                "head=False, or --no-head, leaves the head alone"
            )


def _check_clashes(found: Survey, prefix: str) -> None:
    for name, (one, other) in found.clashes.items():
        if name.startswith(prefix) if prefix else strip_prefix(name) is None:
            raise CheckpointError(
                f"{found.folder}: both {one.name} and {other.name} hold {name}, and no index "
                "says which counts. Name the file of the head"
            )


def _trunk_is_raw(found: Survey) -> bool | None:
    """mlx-lm turns the convolution's axes when it converts: a raw one ends in the kernel."""
    ends = [t.shape[-1] for n, t in found.tensors.items() if "conv1d.weight" in n and t.shape]
    return any(end != 1 for end in ends) if ends else None


def _not_found(path: Path, found: Survey) -> str:
    looked = ", ".join(f"{prefix}*" for prefix in PREFIXES)
    read = ", ".join(file.name for file in found.files) or "no .safetensors file"
    text = (
        f"{path}: no multi-token-prediction head. Looked for tensors named {looked}, and for "
        f"a drafter's (fc.weight, pre_fc_norm_hidden.weight, ...). Read: {read}."
    )
    if not path.is_dir():
        return text
    if pickles := [p.name for p in sorted(path.iterdir()) if p.suffix in (".bin", ".pt", ".pth")]:
        text += f" Pickled weights are never opened: {', '.join(pickles)}."
    if setting(found.config, "mtp_num_hidden_layers"):
        text += " config.json promises one, but conversions often drop its tensors and keep that."
    return text
