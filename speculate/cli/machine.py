"""What ran, and where."""

from __future__ import annotations

import platform

import mlx.core as mx

from speculate.version import VERSION, mlx_version


def versions() -> dict[str, str]:
    """Of what takes part, by name."""
    import mlx_lm

    return {
        "mlx-speculate": VERSION,
        "mlx": mlx_version(),
        "mlx-lm": mlx_lm.__version__,
        "Python": platform.python_version(),
    }


def device() -> str:
    """Where MLX computes, and on what system."""
    kind = mx.default_device().type
    name = mx.device_info(kind).get("device_name", "")
    return f"{kind.name}: {name}, {platform.system()} {platform.machine()}"
