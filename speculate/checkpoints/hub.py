"""Downloads from a hub, with the heads that mlx-lm's own patterns leave out."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from huggingface_hub import errors, snapshot_download
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, _download

from speculate.checkpoints.folder import INDEX_SUFFIX, REASON_LIMIT, listed
from speculate.checkpoints.names import of_head
from speculate.errors import CheckpointError
from speculate.validation import refuse

_logger = logging.getLogger(__name__)

HEAD_PATTERN: Final = "*mtp*.safetensors"
"""Name of a head's own file: `mtp.safetensors`, `model-mtp.safetensors`, ..."""

_REASONS: Final = (
    (errors.GatedRepoError, "its owner grants access on request. Ask for it on the hub, log in"),
    (
        errors.RepositoryNotFoundError,
        "the hub has no such repository, or it is private. Check the name, or log in",
    ),
    (errors.RevisionNotFoundError, "the repository has no such branch, tag or commit"),
    (
        errors.LocalEntryNotFoundError,
        "the hub cannot be reached, and this machine does not have all of it. Connect and try "
        "again, or give a folder",
    ),
)


def resolve_checkpoint(
    path_or_repo: str | Path, revision: str | None = None, *, head_only: bool = False
) -> Path:
    """Return a path that exists: the given one, or the folder of a downloaded hub repository.

    `revision` is a branch, a tag or a commit of the repository `owner/name`. With `head_only`, only
    the files that hold its head are downloaded.

    Raises:
        OptionError: `path_or_repo` is neither a path nor a name.
        CheckpointError: No such path or repository exists.
    """
    if not isinstance(path_or_repo, str | Path):
        refuse("path_or_repo", "a path or a hub repository", path_or_repo)
    path = Path(path_or_repo).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if isinstance(path_or_repo, Path) or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", path_or_repo):
        raise CheckpointError(
            f"{path}: there is no such folder. Give a model's folder, or a hub repository as "
            "owner/name"
        )
    return (download_head if head_only else download)(path_or_repo, revision)


def download(repository: str, revision: str | None = None) -> Path:
    """Download the files of a model and its head that are not in the local cache.

    Returns:
        The folder. Without a connection it may lack the head's files, if everything that mlx-lm
        needs is there.
    """
    patterns = [*DEFAULT_ALLOW_PATTERNS, HEAD_PATTERN]
    try:
        folder = _fetch(repository, revision, patterns)
    except CheckpointError as error:
        if isinstance(error.__cause__, errors.LocalEntryNotFoundError):
            with suppress(errors.LocalEntryNotFoundError):
                return _without_head(repository, revision)
        raise
    # An index may keep a head in a file of any name.
    if absent := [name for name in _listed(folder) if not os.path.exists(folder / name)]:
        _fetch(repository, revision, [*patterns, *absent])
    return folder


def download_head(repository: str, revision: str | None = None) -> Path:
    """Download only those files of a model, or of a head on its own, that hold the head."""
    described = ["config.json", f"*{INDEX_SUFFIX}"]
    folder = _fetch(repository, revision, described)
    files = _listed(folder)
    if not files:
        # An index without a head lists the trunk: gigabytes, for nothing.
        files = [HEAD_PATTERN] if any(folder.glob(f"*{INDEX_SUFFIX}")) else ["*.safetensors"]
    folder = _fetch(repository, revision, [*described, *files])
    if not folder.is_dir():
        raise CheckpointError(f"{repository}: holds neither config.json nor safetensors files")
    return folder


def _listed(folder: Path) -> list[str]:
    """Return the files that hold a head by a folder's index, whether they exist or not."""
    places = listed(folder) if folder.is_dir() else {}
    return sorted({places[name].relative_to(folder).as_posix() for name in of_head(places)})


def _fetch(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Download what matches, or say why it failed, and what to do."""
    try:
        return Path(_download(repository, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:REASON_LIMIT]}"
        known = next((reason for kind, reason in _REASONS if isinstance(error, kind)), text)
        raise CheckpointError(
            f"{repository}: there is no such folder, and it could not be downloaded from the hub: "
            f"{known}"
        ) from error


def _without_head(repository: str, revision: str | None) -> Path:
    """Return what mlx-lm downloaded before."""
    patterns = DEFAULT_ALLOW_PATTERNS
    found = snapshot_download(
        repository, revision=revision, allow_patterns=patterns, local_files_only=True
    )
    text = "%s: the hub cannot be reached, and files of its head were never downloaded"
    _logger.warning(text, repository)
    return Path(found)
