"""The clock that benchmarks go by."""

from __future__ import annotations

import os
import time
from typing import Final

THREADS: Final = "OPENBLAS_NUM_THREADS"


def now() -> float:
    """Seconds.

    With one thread for products it is the processor's time that counts, which what else runs on
    the machine hardly changes. With more of them it is the wall's: a thread that waits for
    another takes the processor's time as well.
    """
    return time.process_time() if counts_processor() else time.perf_counter()


def counts_processor() -> bool:
    """Whether it is the processor's time that counts."""
    return os.environ.get(THREADS) == "1"
