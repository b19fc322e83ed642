"""Checkpoints from a hub, their heads included, which mlx-lm's own patterns leave out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from huggingface_hub import errors, snapshot_download
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, _download

from speculate.checkpoints.folder import INDEX_SUFFIX, exists
from speculate.checkpoints.head import listed_files
from speculate.errors import CheckpointError

_logger = logging.getLogger(__name__)

HEAD_PATTERN: Final = "*mtp*.safetensors"
"""What a head's own file is called: `mtp.safetensors`, `model-mtp.safetensors`, ..."""

REASON_LIMIT: Final = 300
"""Most characters that are quoted of another library's error."""

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


def download(repository: str, revision: str | None = None) -> Path:
    """Fetch what a model and its head need, as far as it is not here yet.

    Args:
        repository: `owner/name`.
        revision: A branch, a tag or a commit.

    Returns:
        The folder. Without a connection it may lack the head's files, if everything that
        mlx-lm needs is there.

    Raises:
        CheckpointError: The repository cannot be had. Says why, and what to do.
    """
    patterns = [*DEFAULT_ALLOW_PATTERNS, HEAD_PATTERN]
    try:
        folder = _fetch(repository, revision, patterns)
    except errors.LocalEntryNotFoundError as error:
        folder = _without_head(repository, revision, error)
    else:
        # An index may keep a head in a file of any name.
        if absent := [name for name in listed_files(folder) if not exists(folder / name)]:
            _explained_fetch(repository, revision, [*patterns, *absent])
    return folder


def download_head(repository: str, revision: str | None = None) -> Path:
    """Fetch as little of a repository as holds its head.

    Args:
        repository: `owner/name`: a model that kept its head, or a head on its own.
        revision: A branch, a tag or a commit.

    Returns:
        The folder, which may lack most of the trunk.

    Raises:
        CheckpointError: The repository cannot be had. Says why, and what to do.
    """
    described = ["config.json", f"*{INDEX_SUFFIX}"]
    folder = _explained_fetch(repository, revision, described)
    files = listed_files(folder)
    if not files:
        # What an index lists without a head is a trunk: gigabytes, for nothing.
        files = [HEAD_PATTERN] if any(folder.glob(f"*{INDEX_SUFFIX}")) else ["*.safetensors"]
    folder = _explained_fetch(repository, revision, [*described, *files])
    if not folder.is_dir():
        raise CheckpointError(f"{repository}: holds neither config.json nor safetensors files")
    return folder


def _explained_fetch(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    try:
        return _fetch(repository, revision, patterns)
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(_explanation(repository, error)) from error


def _fetch(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    try:
        return Path(_download(repository, revision=revision, allow_patterns=list(patterns)))
    except errors.LocalEntryNotFoundError:
        raise
    except Exception as error:
        raise CheckpointError(_explanation(repository, error)) from error


def _without_head(repository: str, revision: str | None, error: Exception) -> Path:
    """What mlx-lm has downloaded before, where the hub cannot be reached now."""
    try:
        found = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=DEFAULT_ALLOW_PATTERNS,
            local_files_only=True,
        )
    except errors.LocalEntryNotFoundError:
        raise CheckpointError(_explanation(repository, error)) from error
    _logger.warning(
        "%s: the hub cannot be reached, and files of its head were never downloaded", repository
    )
    return Path(found)


def _explanation(repository: str, error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:REASON_LIMIT]}"
    known = next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
    return (
        f"{repository}: there is no such folder, and it could not be downloaded from the hub: "
        f"{known or text}"
    )
