"""Files that cannot be written to."""

from __future__ import annotations

from pathlib import Path

from speculate.errors import OptionError


def unwritable(what: str, place: str | Path, error: Exception) -> OptionError:
    """The error to raise.

    Args:
        what: What was to be written.
        place: Where to.
        error: What the system said.
    """
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return OptionError(f"{what} cannot be written to {place}: {reason}")
