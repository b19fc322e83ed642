"""Versions, told here so that they are known where no package metadata is installed."""

from __future__ import annotations

import mlx.core as mx

VERSION = "0.1.0"
"""Of this package; its build reads this line."""


def mlx_version() -> str:
    """Of MLX."""
    found: str = mx.__version__  # type: ignore[attr-defined]  # not in its stubs
    return found
