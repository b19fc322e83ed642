"""From names on the command line to folders."""

from __future__ import annotations

from pathlib import Path

from speculate.loading import DEMO_MODELS, demo_folder


def find(name: str | None, revision: str | None = None, *, head_only: bool = False) -> Path:
    """Where a checkpoint lies: a folder or a file, a bundled model, or a hub repository.

    Args:
        name: A path wins over a bundled model of the same name; `None` is the first of those.
        revision: A branch, a tag or a commit of a repository.
        head_only: Download no more than what holds the head.

    Raises:
        CheckpointError: There is no such thing.
    """
    if is_bundled(name):
        return demo_folder(name or DEMO_MODELS[0])
    # Costs an import of mlx-lm.
    from speculate.checkpoints.folder import resolve_checkpoint

    return resolve_checkpoint(name or DEMO_MODELS[0], revision, head_only=head_only)


def is_bundled(name: str | None) -> bool:
    """Whether a name means a model that comes with this package."""
    return name is None or (name in DEMO_MODELS and not Path(name).exists())
