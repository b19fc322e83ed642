"""How far something is: bars for a person, and lines where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Opens a stage by its name and its number of steps; inside, each step is told by a call."""


@contextmanager
def bars() -> Iterator[Progress]:
    """A bar for each stage, shown in a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


@contextmanager
def stages() -> Iterator[Stage]:
    """A bar for each stage in a terminal; elsewhere a line, on standard error, when it is done."""
    with bars() as progress:

        @contextmanager
        def stage(name: str, steps: int) -> Iterator[Callable[[], None]]:
            task, began = progress.add_task(name, total=steps), time.perf_counter()
            yield partial(progress.advance, task)
            if progress.disable:
                print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)

        yield stage
