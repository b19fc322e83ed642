"""Versions of this package and of MLX, available without installed package metadata."""

from __future__ import annotations

import mlx.core as mx

VERSION = "0.1.0"
"""Version of this package; the build reads this line."""


def mlx_version() -> str:
    """Return the version of MLX."""
    found: str = mx.__version__  # type: ignore[attr-defined]  # not in its stubs
    return found
