"""Downloads from a hub, with the heads that mlx-lm's own patterns leave out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from huggingface_hub import errors, snapshot_download
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, _download

from speculate.checkpoints.folder import INDEX_SUFFIX, REASON_LIMIT, exists
from speculate.checkpoints.head import listed_files
from speculate.errors import CheckpointError

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


def download(repository: str, revision: str | None = None) -> Path:
    """Download the files of a model and its head that are not in the local cache.

    Args:
        repository: `owner/name`.
        revision: A branch, a tag or a commit.

    Returns:
        The folder. Without a connection it may lack the head's files, if everything that mlx-lm
        needs is there.

    Raises:
        CheckpointError: The download failed. Says why, and what to do.
    """
    patterns = [*DEFAULT_ALLOW_PATTERNS, HEAD_PATTERN]
    try:
        folder = _fetch(repository, revision, patterns)
    except errors.LocalEntryNotFoundError as error:
        folder = _without_head(repository, revision, error)
    else:
        # An index may keep a head in a file of any name.
        if absent := [name for name in listed_files(folder) if not exists(folder / name)]:
            _fetch_or_explain(repository, revision, [*patterns, *absent])
    return folder


def download_head(repository: str, revision: str | None = None) -> Path:
    """Download only the files of a repository that hold its head.

    Args:
        repository: `owner/name`: a model that kept its head, or a head on its own.
        revision: A branch, a tag or a commit.

    Returns:
        The folder, which may lack most of the trunk.

    Raises:
        CheckpointError: The download failed. Says why, and what to do.
    """
    described = ["config.json", f"*{INDEX_SUFFIX}"]
    folder = _fetch_or_explain(repository, revision, described)
    files = listed_files(folder)
    if not files:
        # An index without a head lists the trunk: gigabytes, for nothing.
        files = [HEAD_PATTERN] if any(folder.glob(f"*{INDEX_SUFFIX}")) else ["*.safetensors"]
    folder = _fetch_or_explain(repository, revision, [*described, *files])
    if not folder.is_dir():
        raise CheckpointError(f"{repository}: holds neither config.json nor safetensors files")
    return folder


def _fetch_or_explain(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
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
    """Return what mlx-lm downloaded before, if the hub cannot be reached now."""
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
