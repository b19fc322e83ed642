"""Rebuilds everything in ``speculate/data``: ``python -m tools.demo_models``.

Each stage is a process of its own, since that frees its memory and lets one part be repeated;
``--from STAGE`` takes up the work where an earlier run left it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

_BLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")

# (stage, module and its arguments, share of the minutes)
_STAGES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("hybrid", ("train_hybrid",), 0.50),
    ("windowed", ("train_windowed",), 0.14),
    ("draft", ("train_draft",), 0.06),
    ("round", ("train_head", "--round"), 0.0),
    ("generate", ("distill",), 0.07),
    ("head", ("train_head",), 0.13),
    ("follow", ("train_draft", "--follow"), 0.10),
    ("export", ("export",), 0.0),
    ("prompts", ("prompts",), 0.0),
    ("evaluate", ("evaluate", "--show"), 0.0),
)


def _environment() -> dict[str, str]:
    """Returns an environment in which Debian's OpenBLAS, if it is there, does the products."""
    out = dict(os.environ)
    if _BLAS.exists():
        out["LD_PRELOAD"] = str(_BLAS)
    return out


def main() -> None:
    """Runs the stages in order."""
    names = [name for name, _, _ in _STAGES]
    parser = argparse.ArgumentParser(prog="python -m tools.demo_models", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all training together")
    parser.add_argument("--from", dest="start", choices=names, default=names[0])
    args = parser.parse_args()
    for name, (module, *flags), share in _STAGES[names.index(args.start) :]:
        budget = ["--minutes", f"{share * args.minutes:.2f}"] if share else []
        print(f"--- {name} {' '.join(budget)}", flush=True)
        command = [sys.executable, "-m", f"tools.demo_models.{module}", *flags, *budget]
        subprocess.run(command, check=True, env=_environment())


if __name__ == "__main__":
    main()
