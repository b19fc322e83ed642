"""How far something is: bars for a person, and lines where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Opens a stage by its name and its number of steps; inside, each step is told by a call."""

EVERY: Final = 10.0
"""Seconds after which there is a line about a stage that goes on, where there is no terminal."""


@final
class Bar:
    """Something under way, as a bar in a terminal, and elsewhere as a line now and then."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def name(self, name: str, steps: int | None = None) -> None:
        """Say what is done now, and of how many steps, if that was not known before."""
        self._bars.update(self._task, description=name, total=steps)

    def advance(self, steps: int = 1) -> None:
        """Some steps are done."""
        self._bars.update(self._task, advance=steps)

    def reach(self, steps: int) -> None:
        """So many steps are done in all."""
        self._bars.update(self._task, completed=steps)


@final
class Bars:
    """All that is under way.

    Args:
        progress: What draws the bars; disabled where there is no terminal.
        left: Seconds until everything is done, as far as they are known.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self, progress: Progress, left: Callable[[], float | None], clock: Callable[[], float]
    ) -> None:
        self._progress = progress
        self._left = left
        self._clock = clock
        self._said = clock()

    def begin(self, name: str, steps: int | None = None) -> Bar:
        """Something new; how many steps it has may be said later."""
        return Bar(self, self._progress.add_task(name, total=steps, left=""))

    def update(
        self,
        task: TaskID,
        description: str | None = None,
        total: int | None = None,
        advance: int | None = None,
        completed: int | None = None,
    ) -> None:
        """Show something as it is now: bars at once, a line if the last one is a while ago."""
        self._progress.update(
            task,
            description=description,
            total=total,
            advance=advance,
            completed=completed,
            left=self._remaining(),
        )
        if self._clock() - self._said >= EVERY:
            found = next(each for each in self._progress.tasks if each.id == task)
            done = "" if found.total is None else f": {found.percentage:.0f}%"
            self.say(f"{found.description}{done}")

    def say(self, text: str) -> None:
        """A line on standard error, where there is no terminal."""
        if self._progress.disable:
            print(f"{text}{self._remaining()}", file=sys.stderr, flush=True)
            self._said = self._clock()

    def _remaining(self) -> str:
        left = self._left()
        return f", about {duration(left)} left" if left else ""


@contextmanager
def bars(
    left: Callable[[], float | None] = lambda: None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Bars]:
    """Progress on standard error.

    Args:
        left: Seconds until everything is done; `None` where that is not known.
        clock: Tells the time, in seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bars(progress, left, clock)


@contextmanager
def stages(
    left: Callable[[], float | None] = lambda: None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Stage]:
    """The same in stages: elsewhere than in a terminal a line also says when one is done.

    Args:
        left: Seconds until everything is done; `None` where that is not known.
        clock: Tells the time, in seconds.
    """
    with bars(left, clock) as shown:

        @contextmanager
        def stage(name: str, steps: int) -> Iterator[Callable[[], None]]:
            bar, began = shown.begin(name, steps), clock()
            yield bar.advance
            shown.say(f"{name}: {clock() - began:.1f} s")

        yield stage


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
