"""`python -m benchmarks`: every benchmark that docs/performance.md shows, one after the other.

Each runs in a process of its own. `--quick` tries whether all of them work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.report import RESULTS

ALL: Final = ("roofline", "dense", "heads", "efficiency", "grown", "rejection", "idle", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats and small models")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for JSON and PNG")
    parser.add_argument("--busy", action="store_true", help="by the processor's time")
    parser.add_argument("--short", action="store_true", help="one prompt of a kind, one model")
    given = parser.parse_args()
    failed = []
    for name in ALL:
        began = time.perf_counter()
        flags = [flag for flag in ("quick", "busy", "short") if getattr(given, flag)]
        options = [f"--{flag}" for flag in flags if name != "roofline"]
        if given.output != RESULTS:
            options += ["--output", str(given.output)]
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    if failed:
        print("failed:", *failed)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
