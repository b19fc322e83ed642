"""The memory-bound regime, in which speed is measured on a CPU.

MLX's CPU wheel multiplies with a reference BLAS whose time grows with the number of rows, so
that nothing drafted could ever pay. With OpenBLAS loaded in front of it float32 products are
bound by reading the weights, as they are on real hardware.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

import mlx.core as mx

THREADS: Final = 2
PATTERN: Final = "*-linux-gnu/openblas-pthread/libopenblas.so.0"
"""Where Debian's package puts the library, under `/usr/lib`."""

REMEDY: Final = (
    "The benchmarks need OpenBLAS in front of MLX's own BLAS: apt-get install libopenblas0-pthread"
)
ROOT: Final = Path(__file__).parents[1]


def enter(threads: int = THREADS) -> None:
    """Start this program again with OpenBLAS in front, unless it runs so already.

    Call it first thing in `main`. On macOS, and on a GPU, there is nothing to do.

    Args:
        threads: For products.

    Raises:
        SystemExit: OpenBLAS is not installed, or the loader ignored it.
    """
    on_cpu = mx.default_device() == mx.cpu
    if sys.platform == "linux" and on_cpu and loaded() is None:
        start_again(find_openblas(), threads)


def start_again(library: Path, threads: int = THREADS) -> NoReturn:
    """Replace this process by the same program with `library` in front.

    Raises:
        SystemExit: It has been tried, and the loader ignored the library.
    """
    if str(library) in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit(f"{library} is in LD_PRELOAD and was not loaded. {REMEDY}")
    regime = {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": str(threads)}
    arguments = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **regime})


def loaded() -> Path | None:
    """The OpenBLAS that this process has loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    paths = [Path(line.split()[-1]) for line in lines if "/" in line]
    return next((path for path in paths if path.name.startswith("libopenblas")), None)


def find_openblas(root: Path = Path("/usr/lib")) -> Path:
    """Debian's OpenBLAS for threads.

    Args:
        root: Where to look.

    Raises:
        SystemExit: It is not installed. Says how to get it.
    """
    found = sorted(root.glob(PATTERN))
    if not found:
        raise SystemExit(f"{root / PATTERN} was not found. {REMEDY}")
    return found[0]


def environment() -> dict[str, str | int | None]:
    """What a measurement depends on, for its JSON file."""
    blas = loaded()
    return {
        "device": mx.device_info(mx.default_device()).get("device_name", "") or _cpu(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "blas": blas.resolve().name if blas else "as MLX ships it",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS") if blas else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
    }


def _cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of this checkout; `None` outside of one."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None
