"""What ran, and where."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final

import mlx.core as mx

NAMES: Final = ("mlx-speculate", "mlx", "mlx-lm")


def versions() -> dict[str, str]:
    """Of what takes part, by name."""
    return {**{name: version(name) for name in NAMES}, "Python": platform.python_version()}


def device() -> str:
    """Where MLX computes, and on what system."""
    kind = mx.default_device().type
    name = mx.device_info(kind).get("device_name", "")
    return f"{kind.name}: {name}, {platform.system()} {platform.machine()}"
